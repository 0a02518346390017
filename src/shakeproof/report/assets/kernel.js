/* The kernel at some strengths: as a picture, and in words. */

function kernelPicture({ matrix, offset }) {
  const rows = matrix.length,
    columns = matrix[0].length,
    entries = matrix.flat();
  const centre = matrix[Math.floor(rows / 2)][Math.floor(columns / 2)];
  const added = offset ? `, ${offset > 0 ? "+" : "−"}${plain(Math.abs(offset))} on every pixel` : "";
  const sum = plain(entries.reduce((total, entry) => total + entry, 0));
  const isTone = entries.length === 1,
    range = [Math.max(...entries), Math.min(...entries)].map(plain);
  const picture = svg(
    "svg",
    {
      viewBox: "0 0 100 100",
      role: "img",
      "data-centre": centre,
      "aria-label": `Kernel of ${rows} by ${columns} entries, ${plain(centre)} in the middle, the largest ${range[0]}, the smallest ${range[1]}${added}`,
    },
    isTone ? toneText(centre, offset) : kernelCells(matrix),
  );
  const text = isTone
    ? ` × ${plain(centre)}${added}`
    : ` ${rows} × ${columns}, middle ${plain(centre)}, sum ${sum}${added}`;
  return { picture, caption: [el("b", {}, isTone ? "tone" : "kernel"), text] };
}

/* Blue adds, orange takes away. Small kernels have their numbers written in. */
function kernelCells(matrix) {
  const longest = Math.max(matrix.length, matrix[0].length),
    side = 100 / longest;
  const left = (100 - side * matrix[0].length) / 2,
    top = (100 - side * matrix.length) / 2;
  const limit = Math.max(...matrix.flat().map(Math.abs), 1e-12);
  const cell = (entry, i, j) => {
    const share = Math.abs(entry) / limit,
      x = left + j * side,
      y = top + i * side;
    const colour = `color-mix(in oklab, ${entry < 0 ? "var(--lost)" : "var(--safe)"} ${Math.round(100 * share)}%, var(--card))`;
    const number = svg(
      "text",
      {
        x: x + side / 2,
        y: y + side / 2 + 1.6,
        "text-anchor": "middle",
        css: { "font-size": `${Math.min(side / 3.4, 9)}px`, fill: share > 0.6 ? "var(--card)" : "var(--ink)" },
      },
      Number(entry.toPrecision(2)),
    );
    return [
      svg("rect", { x, y, width: side, height: side, stroke: "var(--line)", "stroke-width": 0.3, fill: colour }),
      longest <= 7 ? number : null,
    ];
  };
  return matrix.flatMap((entries, i) => entries.flatMap((entry, j) => cell(entry, i, j)));
}

function toneText(gain, offset) {
  const text = (y, said) =>
    svg("text", { class: "strong", x: 50, y, "text-anchor": "middle", css: { "font-size": "9px" } }, said);
  const short = (number) => plain(Number(Math.abs(number).toPrecision(3)));
  return [text(44, "every pixel"), text(60, `× ${short(gain)} ${offset < 0 ? "−" : "+"} ${short(offset)}`)];
}
