/* Certified accuracy: counted at the chosen strength, and as curves over all strengths. */

const lineOf = (parts, x, y) =>
  "M" + parts.map(({ from, to, height }) => `${x(from)},${y(height)}L${x(to)},${y(height)}`).join("L");

function areaBetween(upper, lower, x, y) {
  const back = [...lower].reverse().map(({ from, to, height }) => `${x(to)},${y(height)}L${x(from)},${y(height)}`);
  return lineOf(upper, x, y) + "L" + back.join("L") + "Z";
}

/* Curves of one family; `at` moves the line to a strength, and tells the numbers there. */
function accuracyPanel(selection, members) {
  const heights = (parts, all, of) =>
    parts.map((part) => ({ ...part, height: of ? of(part.count, all) : part.count / all }));
  const line = svg("line", { class: "now" }),
    numbers = el("div"),
    family = members[0].family;
  let z = 0,
    place = () => {};
  const chart = responsive(
    190,
    (width, height) => {
      const { x, y, axes, top, bottom } = frame(width, height, selection.end, 0, 1, [
        [0, "0 %"],
        [0.5, "50 %"],
        [1, "100 %"],
      ]);
      const drawn = members.map((kind, which) => {
        const { all, certified, possible } = selection.steps(kind.number),
          colour = ordered(which);
        const low = selection.band(0, all) && heights(certified, all, (n) => selection.band(n, all)[0]);
        const high = low && heights(possible, all, (n) => selection.band(n, all)[1]);
        const unsettled = selection.byPerturbation
          .get(kind.number)
          .some((answer) => answer.reached < Math.min(answer.lost, selection.end));
        return [
          low ? svg("path", { class: "band", fill: colour, d: areaBetween(high, low, x, y) }) : null,
          unsettled
            ? svg("path", {
                fill: "url(#hatch)",
                opacity: 0.5,
                d: areaBetween(heights(possible, all), heights(certified, all), x, y),
              })
            : null,
          svg("path", {
            class: "step",
            stroke: colour,
            "stroke-dasharray": dashed(which),
            d: lineOf(heights(certified, all), x, y),
          }),
        ];
      });
      place = () => fill(line, { x1: x(z), x2: x(z), y1: top, y2: bottom }, []);
      place();
      return [...axes, ...drawn.flat(), line];
    },
    {
      "aria-label": `Certified accuracy against strength, ${family}; the numbers at the chosen strength are in the table below`,
    },
  );
  const row = (kind, which, unsettled) => {
    const found = counted(selection.byPerturbation.get(kind.number), z);
    const low = selection.band(found.certified, found.all)?.[0],
      high = selection.band(found.all - found.violated, found.all)?.[1];
    return [
      el("span", {}, sample(which), kind.sizeWords || "all"),
      percent(found.certified / found.all),
      low === undefined ? "–" : `${Math.floor(100 * low)} – ${Math.ceil(100 * high)} %`,
      ...(unsettled ? [found.open || "–"] : []),
    ];
  };
  const panel = el("div", { class: "panel" }, el("h3", {}, name(family)), chart, numbers);
  panel.at = (strength) => {
    z = strength;
    place();
    const unsettled = members.some((kind) => counted(selection.byPerturbation.get(kind.number), z).open);
    numbers.replaceChildren(
      table(
        `${family}: certified accuracy at strength ${plain(z)}`,
        ["", "certified", "95 % band", ...(unsettled ? ["open"] : [])],
        members.map((kind, which) => row(kind, which, unsettled)),
      ),
    );
  };
  return panel;
}

function drawAccuracy(selection) {
  document
    .querySelector("#accuracy .body")
    .replaceChildren(...[...selection.families.values()].map((members) => accuracyPanel(selection, members)));
  document.getElementById("bands").textContent = selection.pooled
    ? "Choose one network to see confidence bands: with several, each image counts more than once."
    : "Bands: where the share lies for the images that these were drawn from at random, with 95 % confidence at each strength" +
      " (Clopper–Pearson). Hatched: not settled, never counted as certified.";
}

function drawGlance(selection, z) {
  const found = counted(selection.answers, z),
    share = (count) => percent(count / (found.all || 1));
  const wrong = selection.answers.filter((answer) => answer.status === "misclassified").length;
  const tiles = [
    ["safe", found.certified, `certified up to strength ${plain(z)}`],
    ["unsafe", found.violated - wrong, "lose their label on the way"],
    ["misclassified", wrong, "wrong from the start"],
    ["undecided", found.open, "not settled there"],
  ];
  const rect = (from, count, fill) =>
    svg("rect", { x: (100 * from) / found.all, width: (100 * count) / found.all, height: 18, fill });
  const worst = [...selection.byPerturbation]
    .map(([number, answers]) => ({ kind: selection.report.perturbations[number], ...counted(answers, z) }))
    .sort((a, b) => a.certified / a.all - b.certified / b.all)[0];
  document.querySelector("#glance .body").replaceChildren(
    el(
      "div",
      { class: "tiles" },
      tiles.map(([status, count, text]) =>
        el(
          "div",
          { class: "tile" },
          el("b", {}, mark(status), share(count)),
          el("span", {}, `${count.toLocaleString("en")} ${text}`),
        ),
      ),
    ),
    svg(
      "svg",
      {
        class: "shares",
        viewBox: "0 0 100 18",
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": tiles.map(([, count, text]) => `${count} ${text}`).join(", "),
      },
      rect(0, found.certified, "var(--safe)"),
      rect(found.certified, found.open, "url(#hatch)"),
      rect(found.certified + found.open, found.violated - wrong, "var(--lost)"),
      rect(found.all - wrong, wrong, "var(--wrong)"),
    ),
    worst && worst.certified < worst.all
      ? el(
          "p",
          { css: { "margin-top": "1rem" } },
          "Weakest at this strength: ",
          name(worst.kind.words),
          `, certified for ${worst.certified} of ${words(worst.all, "image")}.`,
        )
      : "",
  );
}
