/* Whether the campaign's requirements are met: first of all, with the numbers that decide it. */

const JUDGED = {
  MET: { status: "safe", order: 2 },
  "NOT MET": { status: "unsafe", order: 0 },
  "NOT SHOWN": { status: "undecided", order: 1 },
};

/* The requirements as the evidence has them, each with the number of its network. */
function requirementsOf(report) {
  const section = report.evidence.sections.find((own) => own.heading === "Requirements");
  return (section?.rows ?? []).map((row, number) => ({
    ...row,
    number,
    model: report.models.findIndex((model) => model.sha256 === row.model_sha256),
  }));
}

/* What an answer must be about to count for a requirement. */
const countsFor = (report, wanted) => (answer) =>
  answer.model === wanted.model &&
  answer.requirement === wanted.requirement &&
  wanted.perturbations.includes(report.perturbations[answer.perturbation].text);

/* How far a requirement is from being met: nothing if it is, else how much of the share is missing. */
const missing = (wanted) => (wanted.judgement === "MET" ? 0 : wanted.share - wanted["share at least"]);

/* What would change it: the requirement closest to being met, and what stands in its way. */
function closest(wanted) {
  const left = wanted.filter((own) => own.judgement !== "MET").sort((a, b) => missing(a) - missing(b));
  if (!left.length) return null;
  const { id, fail, undecided } = left[0];
  const why = [
    fail ? `${words(fail, "picture fails", "pictures fail")}` : null,
    undecided ? `${words(undecided, "picture is", "pictures are")} undecided` : null,
    fail || undecided ? null : "there are too few pictures",
  ].filter(Boolean);
  return { wanted: left[0], text: ["Closest to being met: ", name(id), `. ${why.join(", ")}.`] };
}

function requirementCard(report, wanted, choose) {
  const { status } = JUDGED[wanted.judgement],
    total = wanted.hold + wanted.fail + wanted.undecided || 1;
  const rect = (from, count, fill) =>
    svg("rect", { x: (100 * from) / total, width: (100 * count) / total, height: 12, fill });
  const asked = wanted.requirement === "label" ? "the label wins" : wanted.written;
  const kinds = wanted.perturbations.map((text) => report.perturbations.find((own) => own.text === text)?.words ?? text);
  return el(
    "article",
    { class: `requirement ${status}` },
    el(
      "h3",
      {},
      el("span", { class: `chip ${status}` }, mark(status), wanted.judgement),
      " ",
      name(wanted.id),
      report.models.length > 1 ? el("span", { class: "dim" }, " — ", name(report.models[wanted.model].name)) : "",
    ),
    wanted.text ? el("p", {}, name(wanted.text)) : "",
    svg(
      "svg",
      {
        class: "shares",
        viewBox: "0 0 100 12",
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `${wanted.hold} hold, ${wanted.undecided} undecided, ${wanted.fail} fail`,
      },
      rect(0, wanted.hold, "var(--safe)"),
      rect(wanted.hold, wanted.undecided, "url(#hatch)"),
      rect(wanted.hold + wanted.undecided, wanted.fail, "var(--lost)"),
    ),
    el("p", { class: "why" }, name(wanted.why), "."),
    el(
      "p",
      { class: "dim" },
      "Required: ",
      name(asked),
      `, up to strength ${plain(wanted.strength)}, under `,
      kinds.slice(0, 4).flatMap((text, i) => [i ? "; " : "", name(text)]),
      kinds.length > 4 ? `; and ${kinds.length - 4} more` : "",
      "." + (wanted["by certificates"] && report.answers.some((answer) => answer.certificate) ? ` By certificates alone: ${wanted["by certificates"]}.` : ""),
    ),
    el("button", { type: "button", onclick: () => choose(wanted) }, "Show its pictures"),
  );
}

function drawRequirements(report, choose) {
  const all = report.requirements;
  for (const part of document.querySelectorAll(".requirements")) part.hidden = !all.length;
  if (!all.length) return;
  const count = (judgement) => all.filter((own) => own.judgement === judgement).length;
  const near = closest(all);
  document.querySelector("#requirements .body").replaceChildren(
    el(
      "p",
      { class: "lead" },
      `${count("MET")} of ${words(all.length, "requirement")} met, ${count("NOT MET")} not met, ${count("NOT SHOWN")} not shown.`,
    ),
    el(
      "div",
      { class: "panels" },
      [...all]
        .sort((a, b) => JUDGED[a.judgement].order - JUDGED[b.judgement].order)
        .map((wanted) => requirementCard(report, wanted, choose)),
    ),
    ...(near
      ? [el("ul", { class: "next" }, el("li", {}, el("button", { onclick: () => choose(near.wanted) }, near.text)))]
      : []),
  );
}
