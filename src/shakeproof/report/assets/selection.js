/* What some answers say together, at a strength and for a network. Each has two numbers: the label is proved to win up to
   `proved` (null: nowhere), and is lost from `lost` on (Infinity: nowhere). */

const lost = (answer, z) => answer.lost <= z;
const proved = (answer, z) => answer.proved !== null && z <= answer.proved && !lost(answer, z);
/* The largest of many numbers, and at least another one. */
const largest = (numbers, least) => numbers.reduce((most, number) => Math.max(most, number), least);

function counted(answers, z) {
  const certified = answers.filter((answer) => proved(answer, z)).length;
  const violated = answers.filter((answer) => lost(answer, z)).length;
  return { certified, violated, open: answers.length - certified - violated, all: answers.length };
}

function grouped(items, key) {
  const groups = new Map();
  for (const item of items) {
    const own = key(item);
    if (!groups.has(own)) groups.set(own, []);
    groups.get(own).push(item);
  }
  return groups;
}

/* Texts in the order of their numbers: 5 before 11, 0° before 90°. */
const inOrder = (a, b) => a.localeCompare(b, "en", { numeric: true });

/* The answers about each image, for each network apart. */
const byImage = (answers) => grouped(answers, (answer) => `${answer.model} ${answer.image}`);

/* How many images hold under all that was asked of them up to a strength, fail under something, or neither. */
function countedImages(answers, z) {
  const images = [...byImage(answers).values()];
  const certified = images.filter((own) => own.every((answer) => proved(answer, z))).length;
  const violated = images.filter((own) => own.some((answer) => lost(answer, z))).length;
  return { certified, violated, open: images.length - certified - violated, all: images.length };
}

const average = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / (numbers.length || 1);

/* Everything that the summaries need of a report, for the network and the requirement that were chosen. */
class Selection {
  constructor(report, model, wanted) {
    this.report = report;
    this.wanted = wanted;
    this.about = wanted ? countsFor(report, wanted) : () => true;
    this.pooled = model === "" && report.models.length > 1;
    this.asked = report.answers.filter((answer) => (model === "" || answer.model === Number(model)) && this.about(answer));
    /* Shares and averages are over what the network classifies as it should. */
    this.answers = this.asked.filter((answer) => answer.status !== "misclassified");
    this.byPerturbation = grouped(this.answers, (answer) => answer.perturbation);
    this.end = largest(
      this.answers.map((answer) => answer.end),
      0,
    );
  }

  /* How what is required is spoken of. */
  get words() {
    return !this.wanted || this.wanted.requirement === "label"
      ? { right: "that are classified correctly", lose: "change class under some perturbation" }
      : { right: `for which ${this.wanted.written} holds at strength 0`, lose: "fail under some perturbation" };
  }

  /* Panels and rows of the matrix: perturbations that differ by their size alone, small before large. */
  get families() {
    const kinds = [...this.byPerturbation.keys()].map((number) => ({ number, ...this.report.perturbations[number] }));
    return grouped(
      kinds.sort((a, b) => inOrder(a.family, b.family) || inOrder(a.sizeWords, b.sizeWords)),
      (kind) => kind.family,
    );
  }

  /* How many images are certified, and how many are not lost, as steps over the strength. */
  steps(number) {
    const answers = this.byPerturbation.get(number),
      sorted = (values) => Float64Array.from(values).sort();
    const certified = answers.filter((answer) => answer.proved !== null).map((answer) => answer.proved);
    return {
      all: answers.length,
      certified: steps(sorted(certified), this.end),
      possible: steps(sorted(answers.map((answer) => answer.lost)), this.end),
    };
  }

  /* Between which shares 95 of 100 samples of images would put it; none where an image counts for several networks. */
  band(count, all) {
    return this.pooled || !this.report.bands[all] ? null : this.report.bands[all][count];
  }
}

/* A count that falls at each of some sorted strengths, as steps up to `end`. */
function steps(falls, end) {
  const parts = [];
  let from = 0,
    i = 0;
  while (i < falls.length && falls[i] < end) {
    const at = falls[i];
    if (at > from) parts.push({ from, to: at, count: falls.length - i });
    from = at;
    while (falls[i] === at) i++;
  }
  return [...parts, { from, to: end, count: falls.length - i }];
}
