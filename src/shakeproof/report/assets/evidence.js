/* The last part: what was claimed, and what it rests on, clause by clause. */

const cellText = (value, key) =>
  value === null || value === undefined || value === ""
    ? "–"
    : Array.isArray(value)
      ? value.map(cellText).join(key === "critical_strength" ? " to " : ", ") || "–"
      : String(value);

/* Where digests are listed in full above, the first digits are enough to find them there. */
const SHORT = { image_sha256: 12, model_sha256: 12 };

function evidenceTable(heading, rows) {
  const heads = Object.keys(rows[0]),
    text = (row, key) => name(cellText(row[key], key).slice(0, SHORT[key]));
  const made = table(
    heading,
    heads,
    rows.map((row) =>
      heads.map((key, i) => (i ? { numeric: typeof row[key] === "number", shown: text(row, key) } : text(row, key))),
    ),
  );
  if (rows.length > 12) made.classList.add("long");
  return made;
}

/* Long tables are made when they are opened, or printed. */
function evidenceRows(heading, rows) {
  if (rows.length <= 40) return evidenceTable(heading, rows);
  const folded = el("details", {}, el("summary", {}, words(rows.length, "row")));
  const make = () => folded.childElementCount === 1 && folded.append(evidenceTable(heading, rows));
  folded.addEventListener("toggle", make);
  addEventListener("beforeprint", () => {
    make();
    folded.open = true;
  });
  return folded;
}

function drawEvidence(evidence) {
  document.querySelector("#evidence .body").replaceChildren(
    ...evidence.sections.map(({ heading, asks, sentences, rows }) =>
      el(
        "div",
        { class: "clause" },
        el("h3", {}, heading),
        asks ? el("p", { class: "asks" }, asks) : "",
        sentences.map((sentence) => el("p", {}, name(sentence))),
        rows.length ? evidenceRows(heading, rows) : "",
      ),
    ),
  );
}
