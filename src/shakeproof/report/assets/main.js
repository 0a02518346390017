/* From the data to the page. */

/* What all names begin with, up to a folder, says nothing about any of them. */
function shortened(names) {
  let shared = names.length > 1 ? names[0].slice(0, names[0].lastIndexOf("/") + 1) : "";
  for (const own of names)
    while (!own.startsWith(shared)) shared = shared.slice(0, shared.lastIndexOf("/", shared.length - 2) + 1);
  return names.map((own) => own.slice(shared.length));
}

/* The class that wins where the label loses first; null where it was not shown to lose. */
function winnerInstead({ status, lost, predicted, label, profile, counterexample }) {
  if (lost === null || status === "misclassified") return lost === null ? null : predicted;
  return (profile.find((part) => part.class !== label) ?? counterexample)?.class ?? null;
}

const bracketed = (low, high) =>
  high - low < 1e-6
    ? low.toFixed(9)
    : low > 0
      ? `${low.toFixed(6)} to ${high.toFixed(6)}`
      : `at most ${high.toFixed(6)}`;

/* What was found, in words. */
function sentence({ status, strength, counterexample, why, reached, lost, labelWords, predictedWords, required }) {
  const several = (z) => [z].flat().join(", ");
  const [wins, loses] = required ? [`${required} holds`, `${required} fails`] : [`${labelWords} wins`, `${labelWords} loses`];
  if (status === "misclassified")
    return required ? `${loses} at strength 0` : `${predictedWords ?? "no class"} wins at strength 0, not ${labelWords}`;
  if (status === "safe") return `${wins} at every strength up to ${several(strength)}`;
  if (status === "unsafe")
    return Array.isArray(strength)
      ? `${loses} at strength ${several(counterexample?.strength ?? lost)}`
      : `${loses}, critical strength ${bracketed(reached, lost)}`;
  return why + (reached > 0 ? `; ${wins} up to strength ${down(reached, 6)}` : "");
}

/* What the page says of an answer in several places, worked out once. */
function prepared(report) {
  const called = (model, number) =>
    number === null ? null : (report.models[model].classes[number] ?? `class ${number}`);
  const pictures = shortened(report.images.map((image) => image.name));
  report.answers.forEach((answer, number) => {
    answer.strength ??= 1; // of an error, nothing was asked
    const ends = [answer.strength].flat(),
      found = answer.counterexample,
      wrong = answer.status === "misclassified";
    const reached = answer.proved ?? 0,
      where = answer.lost ?? Infinity;
    for (const part of answer.profile) part.words = called(answer.model, part.class);
    const stated = report.requirements.find((own) => own.requirement === answer.requirement)?.written;
    const required = answer.requirement === "label" ? null : (stated ?? answer.requirement);
    for (const rival of answer.margins?.rivals ?? [])
      rival.words = rival.class >= 0 ? called(answer.model, rival.class) : required ? null : "the best rival";
    if (found) found.words = required ? "it fails" : called(answer.model, found.class);
    Object.assign(answer, {
      number,
      required,
      holdsWords: required ? "it holds" : (called(answer.model, answer.label) ?? "no label"),
      end: Math.min(...ends),
      lost: where,
      reached,
      labelWords: called(answer.model, answer.label) ?? "no label",
      predictedWords: required ? null : called(answer.model, answer.predicted),
      rival: required ? null : called(answer.model, winnerInstead(answer)),
      imageWords: pictures[answer.image],
      briefly: wrong
        ? "at 0"
        : answer.status === "safe"
          ? `≥ ${plain(Math.min(...ends))}`
          : answer.status === "undecided" || answer.status === "error"
            ? reached > 0
              ? `> ${down(reached)}`
              : "open"
            : down(where),
    });
    answer.sentence = sentence(answer);
    answer.found = [
      answer.imageWords,
      report.perturbations[answer.perturbation].words,
      report.perturbations[answer.perturbation].text,
      answer.labelWords,
      answer.rival,
      required,
    ]
      .join("\n")
      .toLowerCase();
  });
  return report;
}

function themed() {
  const box = document.getElementById("theme");
  box.addEventListener("change", () => {
    document.documentElement.dataset.theme = box.value;
  });
}

function controls(report, changed) {
  const end =
    largest(
      report.answers.map((answer) => answer.end),
      0,
    ) || 1;
  const state = { z: Math.min(largest(report.strengths, 0), end), model: "", requirement: "" };
  const output = el("output", { for: "z" }, plain(state.z));
  const range = el("input", {
    type: "range",
    id: "z",
    min: 0,
    max: end,
    step: end / 200,
    value: state.z,
    list: "strengths",
    oninput: () => {
      state.z = Number(range.value);
      output.textContent = plain(state.z);
      changed(state);
    },
  });
  const requirement = el(
    "select",
    { onchange: () => state.choose(requirement.value) },
    report.requirements.map((own) =>
      el("option", { value: own.number }, `${own.id} ${report.models.length > 1 ? report.models[own.model].name : ""}`),
    ),
  );
  /* Everything below is about one requirement, at its strength, for its network. */
  state.choose = (number) => {
    const wanted = report.requirements[number];
    [requirement.value, model.value] = [String(number), String(wanted.model)];
    Object.assign(state, { requirement: String(number), model: String(wanted.model), z: wanted.strength });
    range.value = state.z;
    output.textContent = plain(state.z);
    changed(state);
  };
  const model = el(
    "select",
    {
      onchange: () => {
        state.model = model.value;
        changed(state);
      },
    },
    el("option", { value: "" }, "all networks"),
    shortened(report.models.map((own) => own.name)).map((own, number) => el("option", { value: number }, own)),
  );
  document.getElementById("controls").replaceChildren(
    el("label", { class: "strength" }, "Results at strength z = ", output, range),
    el(
      "datalist",
      { id: "strengths" },
      report.strengths.map((value) => el("option", { value })),
    ),
    ...(report.requirements.length
      ? [el("label", {}, "Requirement ", requirement)]
      : report.models.length > 1
        ? [el("label", {}, "Network ", model)]
        : []),
  );
  return state;
}

async function start() {
  document.body.append(hatching());
  themed();
  const found = await contents();
  const report = prepared({ ...found, requirements: requirementsOf(found) });
  document.getElementById("lead").textContent = report.lead;
  document
    .getElementById("notices")
    .replaceChildren(...report.notices.map((text) => el("p", { class: "notice" }, text)));
  const detail = new Detail(report, (answer) => detail.show(answer));
  const finder = new Finder(report, (answer, opens) => {
    detail.show(answer).then(() => opens && matchMedia("(max-width: 900px)").matches && detail.body.scrollIntoView());
  });
  document.querySelector("#images .body").replaceChildren(finder.body, detail.body);
  let waiting = false,
    selection = null,
    known = null;
  const redraw = ({ z, model, requirement }) => {
    if (`${model} ${requirement}` !== known) {
      [known, selection] = [`${model} ${requirement}`, new Selection(report, model, report.requirements[requirement])];
      Object.assign(finder, { model, about: selection.about });
      drawAccuracy(selection);
      drawDirections(selection);
      finder.refresh();
      finder.open();
    }
    drawGlance(selection, z, (wanted) => finder.look(wanted));
    for (const panel of document.querySelectorAll("#accuracy .panel")) panel.at(z);
    drawMatrix(selection, z, (kind) => finder.look({ kind }));
    drawClasses(selection, z);
  };
  const state = controls(report, () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      redraw(state);
    });
  });
  const first = report.requirements.find((own) => own.judgement !== "MET") ?? report.requirements[0];
  drawRequirements(report, (wanted) => {
    state.choose(wanted.number);
    document.getElementById("images").scrollIntoView();
  });
  if (first) state.choose(first.number);
  redraw(state);
  drawEvidence(report.evidence);
  document.documentElement.dataset.ready = "yes";
}

start();
