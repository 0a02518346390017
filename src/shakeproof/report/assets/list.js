/* The images: filtered, sorted, and only those rows in the page that can be seen. */

const ROW = 68;
/* What is wrong from the start says nothing about shake: it comes last. */
const isWrong = (answer) => answer.status === "misclassified";
const SORTS = {
  weakest: [
    "weakest first",
    (a, b) => isWrong(a) - isWrong(b) || a.lost - b.lost || a.reached - b.reached || (a.min_margin ?? 0) - (b.min_margin ?? 0),
  ],
  strongest: [
    "strongest first",
    (a, b) => b.lost - a.lost || b.reached - a.reached || (b.min_margin ?? 0) - (a.min_margin ?? 0),
  ],
  unsettled: [
    "most undecided first",
    (a, b) => Math.min(b.lost, b.end) - b.reached - (Math.min(a.lost, a.end) - a.reached),
  ],
  image: ["by name", (a, b) => inOrder(a.imageWords, b.imageWords)],
};

class Finder {
  constructor(report, chosen) {
    Object.assign(this, { report, chosen, model: "", about: () => true, shown: [], selected: 0, thumbnails: new Map() });
    const options = (pairs) => pairs.map(([value, text]) => el("option", { value }, text));
    const select = (text, pairs) => {
      const box = el("select", { "aria-label": text, onchange: () => this.refresh() }, options(pairs));
      return [box, el("label", {}, text, box)];
    };
    const labels = [...new Set(report.answers.map((answer) => answer.labelWords))].sort(inOrder);
    let about, status, kind, label, sort;
    this.search = el("input", {
      type: "search",
      placeholder: "name, class or perturbation",
      oninput: () => this.refresh(),
    });
    [this.status, status] = select("Verdict", [
      ["", "any"],
      ...Object.entries(VERDICTS)
        .filter(([own]) => report.answers.some((answer) => answer.status === own))
        .map(([own, [, text]]) => [own, text]),
    ]);
    [this.kind, kind] = select("Perturbation", [
      ["", "any"],
      ...report.perturbations.map((own, number) => [number, own.words]).sort((a, b) => inOrder(a[1], b[1])),
    ]);
    [this.label, label] = select("Label", [["", "any"], ...labels.map((own) => [own, own])]);
    [this.sort, sort] = select(
      "Order",
      Object.entries(SORTS).map(([key, [text]]) => [key, text]),
    );
    [this.each, about] = select("Show", [
      ["", "every answer"],
      ["image", "weakest answer of each image"],
    ]);
    this.count = el("p", { class: "dim", role: "status" });
    this.rows = el("div", { class: "rows", role: "presentation" });
    this.list = el(
      "div",
      {
        class: "list",
        role: "listbox",
        tabindex: 0,
        "aria-label": "Answers",
        onscroll: () => this.paint(),
        onkeydown: (event) => this.pressed(event),
      },
      this.rows,
    );
    this.body = el(
      "div",
      { class: "finder" },
      el(
        "div",
        { class: "filters" },
        el("label", { class: "wide" }, "Search", this.search),
        status,
        kind,
        label,
        sort,
        fill(about, { class: "wide" }, []),
      ),
      this.count,
      this.list,
    );
    new ResizeObserver(() => this.paint()).observe(this.list);
  }

  refresh() {
    const wanted = this.search.value.trim().toLowerCase();
    const fits = (answer) =>
      (this.model === "" || answer.model === Number(this.model)) &&
      this.about(answer) &&
      (!this.status.value || answer.status === this.status.value) &&
      (this.kind.value === "" || answer.perturbation === Number(this.kind.value)) &&
      (!this.label.value || answer.labelWords === this.label.value) &&
      (!wanted || answer.found.includes(wanted));
    let fitting = this.report.answers.filter(fits).sort(SORTS.weakest[1]);
    if (this.each.value)
      fitting = [...byImage(fitting).values()].map(([weakest]) => weakest);
    this.shown = fitting.sort(SORTS[this.sort.value][1]);
    this.count.textContent = `${this.shown.length.toLocaleString("en")} of ${words(this.report.answers.length, "answer")}`;
    this.rows.style.height = `${this.shown.length * ROW}px`;
    this.list.scrollTop = 0;
    this.select(0, false);
  }

  /* Show the answers that fit these words; whatever is left out may be anything. */
  look({ kind = "", status = "", image = "" }) {
    [this.kind.value, this.status.value, this.search.value, this.label.value] = [String(kind), status, image, ""];
    this.refresh();
    document.getElementById("images").scrollIntoView();
    this.list.focus({ preventScroll: true });
  }

  /* Open on a picture that teaches something: one that can be drawn, and is lost on the way. */
  open() {
    const teaches = (answer) =>
      answer.status === "unsafe" && (answer.margins || answer.required) && this.report.images[answer.image].pixels;
    const number = this.shown.findIndex(teaches);
    if (number > 0) this.select(number, false);
  }

  select(number, opens = true) {
    this.selected = Math.max(0, Math.min(number, this.shown.length - 1));
    const top = this.selected * ROW,
      { scrollTop, clientHeight } = this.list;
    if (top < scrollTop) this.list.scrollTop = top;
    if (top + ROW > scrollTop + clientHeight) this.list.scrollTop = top + ROW - clientHeight;
    this.paint();
    if (this.shown.length) this.chosen(this.shown[this.selected], opens);
  }

  pressed(event) {
    const page = Math.max(1, Math.floor(this.list.clientHeight / ROW) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in moves)
      this.select(Math.max(0, Math.min(this.selected + moves[event.key], this.shown.length - 1)), false);
    else if (event.key === "Enter" || event.key === " ") this.select(this.selected, true);
    else return;
    event.preventDefault();
  }

  paint() {
    const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - 4),
      last = Math.min(this.shown.length, first + Math.ceil(this.list.clientHeight / ROW) + 9);
    const kept = new Map([...this.rows.children].map((row) => [row.dataset.key, row]));
    const rows = [];
    for (let number = first; number < last; number++) {
      const answer = this.shown[number],
        key = `${answer.number}`,
        row = kept.get(key) || this.row(answer);
      fill(
        row,
        {
          id: `answer-${number}`,
          "aria-posinset": number + 1,
          "aria-setsize": this.shown.length,
          "aria-selected": String(number === this.selected),
          css: { top: `${number * ROW}px` },
        },
        [],
      );
      row.place = number;
      rows.push(row);
    }
    this.rows.replaceChildren(...rows);
    if (this.shown.length) this.list.setAttribute("aria-activedescendant", `answer-${this.selected}`);
    else this.list.removeAttribute("aria-activedescendant");
  }

  row(answer) {
    const row = el(
      "div",
      { class: "row", role: "option", "data-key": answer.number, onclick: () => this.select(row.place) },
      this.thumbnail(answer.image),
      el(
        "span",
        { class: "what" },
        name(answer.imageWords),
        el("span", { class: "sub" }, this.report.perturbations[answer.perturbation].words),
        el("span", { class: "sub" }, answer.required ?? answer.labelWords, answer.rival === null ? "" : ` → ${answer.rival}`),
      ),
      el(
        "span",
        { class: "end" },
        mark(answer.status),
        " ",
        answer.briefly,
        el("span", { class: "hidden" }, `, ${VERDICTS[answer.status][1]}`),
        track(answer),
      ),
    );
    return row;
  }

  thumbnail(number) {
    const image = this.report.images[number],
      canvas = el("canvas", { "aria-hidden": "true", width: 1, height: 1 });
    if (image.pixels) drawImage(canvas, image);
    return canvas;
  }
}
