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
    : "Bands: 95 % confidence intervals at each strength (Clopper–Pearson), for the population that the images are a random sample of." +
      " Hatched: undecided, never counted as certified.";
}

/* What to look at next: each point shows its answers in the list. */
function nextPoints(selection, z) {
  const { report, answers } = selection;
  const weakest = [...selection.byPerturbation]
    .map(([number, own]) => ({ number, words: report.perturbations[number].words, ...counted(own, z) }))
    .sort((a, b) => a.certified / a.all - b.certified / b.all)[0];
  const images = [...byImage(answers).values()].map((own) => ({
    name: own[0].imageWords,
    fails: own.filter((answer) => lost(answer, z)).length,
    all: own.length,
  }));
  const worst = images.sort((a, b) => b.fails / b.all - a.fails / a.all)[0];
  const open = [...selection.byPerturbation]
    .map(([number, own]) => ({ number, words: report.perturbations[number].words, ...counted(own, z) }))
    .sort((a, b) => b.open - a.open)[0];
  const wrong = byImage(selection.asked.filter(isWrong)).size;
  return [
    weakest && weakest.certified < weakest.all
      ? [
          { kind: weakest.number },
          ["Weakest perturbation: ", name(weakest.words), `, certified for ${weakest.certified} of ${words(weakest.all, "image")}.`],
        ]
      : null,
    worst && worst.fails
      ? [
          { image: worst.name },
          ["Weakest image: ", name(worst.name), `, violated under ${worst.fails} of ${words(worst.all, "perturbation")}.`],
        ]
      : null,
    open && open.open
      ? [
          { kind: open.number, status: "undecided" },
          ["Undecided: ", name(open.words), ` for ${words(open.open, "image")}. More time or --pixels 8bit may decide.`],
        ]
      : null,
    wrong ? [{ status: "misclassified" }, [`Misclassified at strength 0: ${words(wrong, "image")}.`]] : null,
  ].filter(Boolean);
}

/* Networks beside each other: which share of its images each has certified, all together and for each perturbation. */
function networkTable(report, z, wanted) {
  const same = (number) => report.requirements.find((own) => own.id === wanted?.id && own.model === number);
  const networks = report.models.map((_, number) => new Selection(report, String(number), same(number)));
  const shares = (cells) => {
    const found = cells.map(({ certified, all }) => (all ? certified / all : 0)),
      best = largest(found, 0);
    return cells.map(({ all, open }, i) => {
      const text = all ? `${percent(found[i])} of ${all}${open ? " ?" : ""}` : "–";
      return found[i] === best && found.some((share) => share < best) ? { shown: el("b", {}, text) } : text;
    });
  };
  const kinds = report.perturbations
    .map((kind, number) => ({ number, words: kind.words }))
    .filter(({ number }) => networks.some((own) => own.byPerturbation.has(number)))
    .sort((a, b) => inOrder(a.words, b.words));
  return table(
    `Networks side by side, certified up to strength ${plain(z)}`,
    ["", ...shortened(report.models.map((own) => own.name)).map(name)],
    [
      ["every perturbation", ...shares(networks.map((own) => countedImages(own.answers, z)))],
      ["misclassified at strength 0", ...networks.map((own) => `${byImage(own.asked.filter(isWrong)).size}`)],
      ...kinds.map(({ number, words: text }) => [
        name(text),
        ...shares(networks.map((own) => counted(own.byPerturbation.get(number) ?? [], z))),
      ]),
    ],
    { class: "networks" },
  );
}

function drawGlance(selection, z, look) {
  const { report } = selection,
    found = countedImages(selection.answers, z),
    wrong = byImage(selection.asked.filter(isWrong)).size;
  const tiles = [
    ["safe", found.certified, `certified under every perturbation up to strength ${plain(z)}`],
    ["unsafe", found.violated, selection.words.lose],
    ["undecided", found.open, "undecided"],
  ];
  const rect = (from, count, fill) =>
    svg("rect", { x: (100 * from) / found.all, width: (100 * count) / found.all, height: 18, fill });
  const points = nextPoints(selection, z);
  document.querySelector("#glance .body").replaceChildren(
    el(
      "p",
      {},
      `Of ${words(found.all, "image")} ${selection.words.right}`,
      selection.pooled ? " (an image counts once for each network):" : ":",
    ),
    el(
      "div",
      { class: "tiles" },
      tiles.map(([status, count, text]) =>
        el(
          "div",
          { class: "tile" },
          el("b", {}, mark(status), percent(count / (found.all || 1))),
          el("span", {}, `${count.toLocaleString("en")} ${text}`),
        ),
      ),
      wrong
        ? el(
            "div",
            { class: "tile" },
            el("b", {}, mark("misclassified"), wrong.toLocaleString("en")),
            el("span", {}, `misclassified at strength 0, and left out of all percentages`),
          )
        : null,
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
      rect(found.certified + found.open, found.violated, "var(--lost)"),
    ),
    ...(points.length
      ? [
          el("h3", { css: { "margin-top": "1.4rem" } }, "Look at next"),
          el(
            "ul",
            { class: "next" },
            points.map(([wanted, text]) => el("li", {}, el("button", { onclick: () => look(wanted) }, text))),
          ),
        ]
      : []),
    ...(report.models.length > 1
      ? [el("h3", { css: { "margin-top": "1.4rem" } }, "Networks side by side"), networkTable(report, z, selection.wanted)]
      : []),
  );
}
