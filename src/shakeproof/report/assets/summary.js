/* The same by families and sizes, by directions of motion, and by classes. */

function drawMatrix(selection, z, choose) {
  const families = [...selection.families.values()];
  const sizes = [...new Map(families.flat().map((kind) => [kind.sizeWords, kind])).values()].sort(
    (a, b) =>
      (a.size === null) - (b.size === null) ||
      b.sizeWords.startsWith("size") - a.sizeWords.startsWith("size") ||
      inOrder(a.sizeWords, b.sizeWords),
  );
  const cell = (kind) => {
    if (!kind) return el("td", {}, el("span", { class: "hidden" }, "not asked"));
    const answers = selection.byPerturbation.get(kind.number),
      found = counted(answers, z),
      open = found.open ? `, ${found.open} undecided` : "";
    const blocks = selection.report.strengths.map((at, i, all) => {
      const { certified, all: count, open: left } = counted(answers, at);
      const box = { x: (100 * i) / all.length, width: 100 / all.length - 1.5, height: 9, rx: 2 };
      return [
        svg("rect", { ...box, fill: heat(certified / count), stroke: "var(--line)", "stroke-width": 0.4 }),
        left ? svg("rect", { ...box, fill: "url(#hatch)", opacity: 0.75 }) : null,
      ];
    });
    return el(
      "td",
      {},
      el(
        "button",
        {
          onclick: () => choose(kind.number),
          css: { background: `color-mix(in srgb, ${heat(found.certified / found.all)} 34%, var(--card))` },
          "aria-label": `${kind.words}: ${percent(found.certified / found.all)} certified${open}; show its images`,
        },
        percent(found.certified / found.all) + (found.open ? " ?" : ""),
        svg(
          "svg",
          {
            viewBox: "0 0 100 9",
            preserveAspectRatio: "none",
            height: 9,
            "aria-hidden": "true",
            css: { "margin-top": ".35rem" },
          },
          blocks.flat(),
        ),
      ),
    );
  };
  document.querySelector("#matrix .body").replaceChildren(
    el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Families by sizes" },
      el(
        "table",
        { class: "cells" },
        el("caption", { class: "hidden" }, `Certified accuracy at strength ${plain(z)}`),
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("td", {}),
            sizes.map((kind) => el("th", { scope: "col", css: { "text-align": "center" } }, kind.sizeWords || "any")),
          ),
        ),
        el(
          "tbody",
          {},
          families.map((members) =>
            el(
              "tr",
              {},
              el("th", { scope: "row" }, name(members[0].family)),
              sizes.map((size) => cell(members.find((kind) => kind.sizeWords === size.sizeWords))),
            ),
          ),
        ),
      ),
    ),
    el(
      "p",
      { class: "dim" },
      "Strengths below each number: ",
      selection.report.strengths.map(plain).join(", "),
      ". Blue is certified, orange is not; ",
      "a question mark and hatching mean undecided.",
    ),
  );
}

function drawDirections(selection) {
  const moving = [...selection.byPerturbation.keys()]
    .map((number) => ({ number, ...selection.report.perturbations[number] }))
    .filter((kind) => kind.motion !== null);
  const shown = new Set(moving.map((kind) => kind.motion.angle)).size > 1;
  for (const part of document.querySelectorAll(".directions")) part.hidden = !shown;
  if (!shown) return;
  const sizes = [...grouped(moving, (kind) => kind.motion.words).entries()].sort((a, b) => a[1][0].size - b[1][0].size);
  const reach = (kind) =>
    average(selection.byPerturbation.get(kind.number).map((answer) => Math.min(answer.reached, answer.end)));
  const series = sizes.map(([size, kinds], place) => {
    const half = kinds
      .map((kind) => ({ angle: kind.motion.angle, reach: reach(kind) }))
      .sort((a, b) => a.angle - b.angle);
    return { size, place, half, whole: [...half, ...half.map((one) => ({ ...one, angle: one.angle + 180 }))] };
  });
  const weakest = series
    .flatMap(({ size, half }) => half.map((one) => ({ size, ...one })))
    .sort((a, b) => a.reach - b.reach)[0];
  const side = 340,
    middle = side / 2,
    radius = 124,
    end = selection.end || 1;
  const at = (angle, length) => [
    middle + length * Math.sin((angle * Math.PI) / 180),
    middle - length * Math.cos((angle * Math.PI) / 180),
  ];
  const rings = [0.25, 0.5, 0.75, 1].map((share) => [
    svg("circle", { class: "axis", cx: middle, cy: middle, r: radius * share, fill: "none" }),
    svg(
      "text",
      {
        x: at(22, radius * share)[0],
        y: at(22, radius * share)[1],
        "text-anchor": "middle",
        css: { "font-size": "10px" },
      },
      plain(end * share),
    ),
  ]);
  const angles = [...new Set(series.flatMap(({ whole }) => whole.map((one) => one.angle)))].sort((a, b) => a - b);
  const many = angles.length > 24;
  const spokes = angles
    .filter((_, i) => !many || i % Math.ceil(angles.length / 16) === 0)
    .map((angle) => {
      const [x, y] = at(angle, radius),
        [tx, ty] = at(angle, radius + 22);
      return [
        svg("line", { class: "axis", x1: middle, y1: middle, x2: x, y2: y }),
        svg("text", { x: tx, y: ty + 4, "text-anchor": "middle" }, `${plain(angle)}°`),
      ];
    });
  const drawn = series.map(({ whole, place }) => [
    svg("polygon", {
      fill: ordered(place),
      "fill-opacity": 0.06,
      stroke: ordered(place),
      "stroke-width": 2.2,
      "stroke-dasharray": dashed(place),
      points: whole.map((one) => at(one.angle, (radius * one.reach) / end).join()).join(" "),
    }),
    ...whole.map((one) => {
      const [cx, cy] = at(one.angle, (radius * one.reach) / end);
      return svg("circle", { cx, cy, r: 3.2, fill: ordered(place) });
    }),
  ]);
  const rows = series.map(({ size, half, place }) => [
    el("span", {}, sample(place), size),
    ...angles
      .filter((angle) => angle < 180)
      .map((angle) => {
        const one = half.find((own) => own.angle === angle);
        return one ? down(one.reach, 3) : "–";
      }),
  ]);
  document.querySelector("#directions .body").replaceChildren(
    el(
      "div",
      { class: "polar" },
      svg(
        "svg",
        {
          viewBox: `0 0 ${side} ${side}`,
          role: "img",
          "aria-label": "Mean certified strength by direction of motion; the same numbers are in the table beside it",
        },
        rings.flat(),
        spokes.flat(),
        drawn.flat(),
      ),
      el(
        "div",
        {},
        el(
          "p",
          {},
          el("b", {}, `Weakest: ${plain(weakest.angle)}°, ${weakest.size}`),
          `, certified up to ${down(weakest.reach, 3)} on average. `,
          "0° is up (a bearing, clockwise), 90° is to the right.",
        ),
        table(
          "Mean certified strength by size and direction",
          ["", ...angles.filter((angle) => angle < 180).map((angle) => `${plain(angle)}°`)],
          rows,
        ),
      ),
    ),
  );
}

function drawClasses(selection, z) {
  const classes = !selection.wanted || selection.wanted.requirement === "label";
  for (const part of document.querySelectorAll(".classes")) part.hidden = !classes;
  if (!classes) return;
  const rows = [...grouped(selection.answers, (answer) => answer.labelWords)]
    .map(([label, answers]) => {
      const beaten = answers.filter((answer) => answer.rival !== null);
      const rivals = [...grouped(beaten, (answer) => answer.rival)]
        .map(([rival, own]) => [rival, own.length])
        .sort((a, b) => b[1] - a[1]);
      return { label, rivals, beaten: beaten.length, ...counted(answers, z) };
    })
    .sort((a, b) => a.certified / a.all - b.certified / b.all || b.all - a.all);
  const row = ({ label, certified, all, open, rivals, beaten }) => [
    name(label),
    `${percent(certified / all)} of ${all.toLocaleString("en")}`,
    {
      shown: svg(
        "svg",
        { viewBox: "0 0 100 10", preserveAspectRatio: "none", height: 10, "aria-hidden": "true" },
        svg("rect", { width: 100, height: 10, fill: "var(--lost-tint)" }),
        svg("rect", { width: (100 * certified) / all, height: 10, fill: "var(--safe)" }),
        svg("rect", { x: (100 * certified) / all, width: (100 * open) / all, height: 10, fill: "url(#hatch)" }),
      ),
    },
    {
      numeric: false,
      shown: beaten
        ? el(
            "span",
            { class: "rivals" },
            rivals.slice(0, 4).map(([rival, count]) => el("span", {}, name(rival), `: ${words(count, "time")}`)),
            rivals.length > 4 ? el("span", {}, `${rivals.length - 4} more`) : null,
          )
        : "none",
    },
  ];
  const shown = (some) =>
    table(
      `Classes, weakest first, at strength ${plain(z)}`,
      ["label", "certified", el("span", { class: "hidden" }, "as a bar"), "confused with, how often"],
      some.map(row),
      { class: "classtable" },
    );
  const rest = rows.slice(20),
    more = el("details", {}, el("summary", {}, `${words(rest.length, "more class", "more classes")}`));
  more.addEventListener("toggle", () => more.childElementCount === 1 && more.append(shown(rest)), { once: true });
  document
    .querySelector("#classes .body")
    .replaceChildren(
      el(
        "p",
        { class: "about" },
        "One row per label, the weakest first. An answer counts for the class that wins where the label is first lost, at any strength.",
      ),
      shown(rows.slice(0, 20)),
      ...(rest.length ? [more] : []),
    );
}
