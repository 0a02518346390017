/* Elements, numbers in words, and the marks that charts share. Nothing here, or elsewhere, takes text for HTML. */

const SVG = "http://www.w3.org/2000/svg";

function fill(node, options, children) {
  for (const [key, value] of Object.entries(options)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "css") for (const [name, own] of Object.entries(value)) node.style.setProperty(name, own);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (name, options = {}, ...children) => fill(document.createElement(name), options, children);
const svg = (name, options = {}, ...children) => fill(document.createElementNS(SVG, name), options, children);
const name = (text) => el("bdi", { class: "name" }, text);
const words = (count, one, many) => `${count.toLocaleString("en")} ${count === 1 ? one : many || one + "s"}`;
const percent = (share) =>
  share > 0 && share < 0.01 ? "< 1 %" : share > 0.99 && share < 1 ? "> 99 %" : `${Math.round(100 * share)} %`;
/* Rounded down: a strength that is certified is never shown as more than it is. */
const down = (z, digits = 4) => (Math.floor(z * 10 ** digits) / 10 ** digits).toFixed(digits);
const plain = (z) => String(Number(z.toPrecision(6)));
const closely = (z) => String(Number(z.toPrecision(9)));

const VERDICTS = {
  safe: ["good", "certified", "M2 8.5 6.2 12.6 14 4.4 12.4 2.8 6.2 9.2 3.6 6.8z"],
  unsafe: ["bad", "violated", "M3.4 2 8 6.6 12.6 2 14 3.4 9.4 8 14 12.6 12.6 14 8 9.4 3.4 14 2 12.6 6.6 8 2 3.4z"],
  misclassified: ["wrongly", "misclassified", "M8 1 15 8 8 15 1 8zM7 4.5v4.4h2V4.5zM7 10v1.8h2V10z"],
  undecided: [
    "unknown",
    "undecided",
    "M5 5.6C5 3.6 6.4 2.4 8.2 2.4c1.8 0 3.2 1.1 3.2 2.9 0 1.4-.8 2.1-1.6 2.7-.7.5-.9.8-.9 1.6H7.1c0-1.4.5-2 1.3-2.6.7-.5 1.1-.9 1.1-1.6 0-.8-.5-1.3-1.3-1.3S6.9 4.7 6.9 5.6zM7 11h2v2.2H7z",
  ],
  error: ["unknown", "error", "M7 2h2l-.3 8H7.3zM7 11.6h2v2H7z"],
};

function mark(status) {
  return svg(
    "svg",
    { class: "mark", viewBox: "0 0 16 16", "aria-hidden": "true" },
    svg("path", { class: VERDICTS[status][0], "fill-rule": "evenodd", d: VERDICTS[status][2] }),
  );
}

const chip = (status) => el("span", { class: `chip ${status}` }, mark(status), VERDICTS[status][1]);

/* Hatching says: not settled. One definition for the whole page. */
function hatching() {
  return svg(
    "svg",
    { width: 0, height: 0, "aria-hidden": "true", css: { position: "absolute" } },
    svg(
      "defs",
      {},
      svg(
        "pattern",
        { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        svg("rect", { width: 7, height: 7, fill: "var(--open-tint)" }),
        svg("rect", { width: 2, height: 7, fill: "var(--open)" }),
      ),
    ),
  );
}

/* One bar from weak to strong: certified, not settled, lost. */
function track(answer) {
  const end = answer.end || 1,
    proved = Math.min(answer.reached / end, 1),
    lost = Math.min(answer.lost / end, 1);
  const part = (from, to, fill) =>
    to > from ? svg("rect", { x: 100 * from, width: 100 * (to - from), height: 8, fill }) : null;
  return svg(
    "svg",
    { class: "track", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    part(0, proved, "var(--safe)"),
    part(proved, lost, "url(#hatch)"),
    part(lost, 1, "var(--lost-tint)"),
    lost < 1 ? svg("rect", { x: Math.min(100 * lost, 97), width: 3, height: 8, fill: "var(--lost)" }) : null,
  );
}

/* Colours in an order: sizes from small to large. Rivals in a plot differ by dashes too. */
const ORDERED = [
  "light-dark(#3b5bdb, #8ea6ff)",
  "light-dark(#8e24aa, #d58bea)",
  "light-dark(#c2410c, #ff9d66)",
  "light-dark(#8a6d00, #e8c547)",
  "light-dark(#14746f, #5cc9c0)",
  "light-dark(#4a4a4a, #c7c7c7)",
];
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2", "1 2"];
const ordered = (place) => ORDERED[place % ORDERED.length];
const dashed = (place) => DASHES[place % DASHES.length];

/* A bit of a line, as a plot draws it. */
function sample(place) {
  return svg(
    "svg",
    { class: "sample", viewBox: "0 0 26 8", "aria-hidden": "true" },
    svg("line", {
      x1: 0,
      x2: 26,
      y1: 4,
      y2: 4,
      stroke: ordered(place),
      "stroke-width": 2.4,
      "stroke-dasharray": dashed(place),
    }),
  );
}

/* From lost (orange) over pale to certified (blue): told apart with any eyes, and always beside its number. */
function heat(share) {
  const towards = share < 0.5 ? "var(--lost)" : "var(--safe)";
  return `color-mix(in oklab, ${towards} ${Math.round(Math.abs(2 * share - 1) * 90)}%, var(--between))`;
}

/* Draws anew whenever the width that it has changes, so that letters keep their size. */
function responsive(height, drawn, options = {}) {
  const box = el("div", { class: "chart" });
  let before = 0;
  const observer = new ResizeObserver(() => box.isConnected && box.clientWidth !== before && box.redraw());
  box.redraw = () => {
    before = box.clientWidth;
    const width = Math.max(before, 200);
    box.replaceChildren(
      svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", ...options }, drawn(width, height)),
    );
  };
  observer.observe(box);
  return box;
}

/* The frame of a plot over z: where things are, and lines with numbers. */
function frame(width, height, end, low, high, ticks, left = 44, bottom = 34, top = 10, right = 14) {
  const x = (z) => left + ((width - left - right) * z) / (end || 1);
  const y = (value) => height - bottom - ((height - bottom - top) * (value - low)) / (high - low || 1);
  const lines = ticks.map(([value, text]) => [
    svg("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
    svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, text),
  ]);
  const places = Array.from({ length: 6 }, (_, i) => (end * i) / 5).map((z) =>
    svg("text", { x: x(z), y: height - bottom + 18, "text-anchor": "middle" }, plain(z)),
  );
  return { x, y, left, right: width - right, top, bottom: height - bottom, axes: [...lines.flat(), ...places] };
}

function table(caption, heads, rows, options = {}) {
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${caption}` },
    el(
      "table",
      options,
      el("caption", { class: "hidden" }, caption),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          heads.map((head, i) =>
            el(
              "th",
              { scope: "col", class: rows[0]?.[i]?.numeric === false ? "words" : null },
              head || el("span", { class: "hidden" }, "which"),
            ),
          ),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            {},
            row.map((cell, i) =>
              i
                ? el("td", cell?.numeric === false ? { class: "words" } : {}, cell?.shown ?? cell)
                : el("th", { scope: "row" }, cell),
            ),
          ),
        ),
      ),
    ),
  );
}
