/* One answer: the picture at any strength, the margins along it, and what was found. */

class Detail {
  constructor(report, open) {
    Object.assign(this, { report, open, turn: 0 });
    this.body = el("article", { class: "detail", id: "detail", "aria-label": "The chosen answer", tabindex: -1 });
  }

  async show(answer) {
    const turn = ++this.turn,
      image = this.report.images[answer.image],
      kind = this.report.perturbations[answer.perturbation];
    Object.assign(this, { answer, image, kind });
    const drawable = image.pixels && (answer.slopes || !kind.parts.some((part) => part.linear));
    const [pixels, slopes, curve] = await Promise.all([
      drawable ? levels(image.pixels) : null,
      answer.slopes ? Promise.all(answer.slopes.map((slope) => slope && levels(slope))) : null,
      answer.margins ? margins(answer) : null,
    ]);
    if (turn !== this.turn) return; // another one was chosen meanwhile
    this.path = pixels && pathOf(pixels, image.shape, kind, slopes);
    const found = answer.counterexample?.strength ?? null,
      at = found === null ? null : [found].flat();
    this.strengths =
      at ||
      [answer.strength]
        .flat()
        .map((end) => (answer.reached > 0 && kind.parts.length === 1 ? Math.min(end, answer.reached) : end));
    this.now = el("p", { class: "now-line", role: "status" });
    this.moved = el("canvas", { role: "img", width: 1, height: 1 });
    this.kernel = el("div", { class: "kernel" });
    this.movedCaption = el("figcaption");
    this.kernelCaption = el("figcaption");
    const point = (z) => {
      this.strengths[0] = z;
      this.move();
    };
    this.chart = curve || answer.profile.length ? new MarginChart(answer, curve, point) : null;
    this.body.replaceChildren(
      el("h3", {}, name(answer.imageWords)),
      el("p", { class: "verdict" }, chip(answer.status), " ", name(kind.words), " — ", name(answer.sentence)),
      this.report.models.length > 1
        ? el("p", { class: "dim" }, "Network: ", name(this.report.models[answer.model].name))
        : "",
      ...(pixels
        ? [this.pictures(pixels), this.sliders()]
        : [el("p", { class: "dim" }, "The picture is not included in this page.")]),
      this.now,
      this.jumps(at),
      ...(this.chart ? [el("h4", {}, "Margin of ", name(answer.required ?? answer.labelWords)), this.chart.body, this.chart.key()] : []),
      ...(at && pixels ? this.counterexample(pixels, at) : []),
      el("h4", { class: "others-title" }, "The same image under other perturbations"),
      this.others(),
      el("h4", {}, "Facts"),
      this.facts(),
    );
    this.move();
  }

  pictures(pixels) {
    const before = el("canvas", {
      role: "img",
      "aria-label": `The original picture ${this.answer.imageWords}`,
      width: 1,
      height: 1,
    });
    draw(before, this.image, pixels);
    return el(
      "div",
      { class: "pictures" },
      el(
        "figure",
        {},
        before,
        el(
          "figcaption",
          {},
          el("b", {}, "original"),
          ...(this.answer.label === null ? [] : [", label ", name(this.answer.labelWords)]),
        ),
      ),
      el("figure", {}, this.moved, this.movedCaption),
      el("figure", {}, this.kernel, this.kernelCaption),
    );
  }

  sliders() {
    const ends = [this.answer.strength].flat();
    this.inputs = this.kind.parts.map((part, p) => {
      const text = ends.length > 1 ? `Strength of ${part.words}` : "Strength z",
        common = { min: 0, max: ends[p] };
      const change = (value, from) => {
        this.strengths[p] = Math.min(Math.max(Number(value) || 0, 0), ends[p]);
        this.move(from);
      };
      const range = el("input", {
        type: "range",
        ...common,
        step: ends[p] / 1000 || "any",
        "aria-label": text,
        oninput: (event) => change(event.target.value, range),
      });
      const number = el("input", {
        type: "number",
        ...common,
        step: "any",
        "aria-label": `${text}, as a number`,
        onchange: (event) => change(event.target.value, null),
      });
      return { text, range, number };
    });
    return el(
      "div",
      { class: "sliders" },
      this.inputs.map(({ text, range, number }) =>
        el("div", { class: "one" }, el("label", { css: { "grid-column": "1 / -1" } }, text), range, number),
      ),
    );
  }

  /* To the places that matter: the picture as it is, the end of what is proved, the flip, the counterexample. */
  jumps(found) {
    const { answer } = this,
      ends = [answer.strength].flat(),
      one = ends.length === 1,
      go = (places) => () => {
        this.strengths = [...places];
        this.move();
      };
    const flip = one && answer.lost > 0 && answer.lost < Infinity ? answer.lost : null;
    const places = [
      ["No perturbation", ends.map(() => 0)],
      ...(one && answer.reached > 0 && answer.reached < ends[0] ? [["Largest certified strength", [answer.reached]]] : []),
      ...(flip === null ? [] : [[answer.required ? "Where it first fails" : "Critical strength", [flip]]]),
      ...(found ? [["Counterexample", found]] : []),
      ["Full strength", ends],
    ];
    return el(
      "div",
      { class: "steps" },
      places.map(([text, at]) => el("button", { type: "button", onclick: go(at) }, text)),
    );
  }

  move(from = null) {
    const { answer, strengths } = this,
      here = standing(answer, strengths),
      z = strengths.map(closely).join(", ");
    if (this.path) {
      draw(this.moved, this.image, this.path(strengths));
      fill(this.moved, { "aria-label": `The picture at strength ${z}` }, []);
      for (const [p, { range, number, text }] of this.inputs.entries()) {
        if (range !== from) range.value = strengths[p];
        number.value = closely(strengths[p]);
        range.setAttribute("aria-valuetext", `${text} ${plain(strengths[p])}: ${here.winner ?? "undecided"}`);
      }
      this.movedCaption.replaceChildren(
        el("b", {}, `z = ${z}`),
        ", ",
        here.winner === null ? "undecided" : name(here.winner),
      );
      const kernel = kernelAt(this.kind, strengths),
        { picture, caption } = kernel ? kernelPicture(kernel) : { picture: "", caption: ["the kernel differs from pixel to pixel"] };
      this.kernel.replaceChildren(picture);
      this.kernelCaption.replaceChildren(...caption);
    }
    const lead = this.chart?.lead(strengths[0]) ?? null;
    this.now.replaceChildren(
      `At z = ${z}: `,
      ...(here.winner === null ? [] : [el("b", {}, name(here.winner)), ", "]),
      here.text,
      ...(lead === null ? [] : [`; margin about ${lead.value.toPrecision(3)}`]),
      ...(lead?.rival ? [" over ", name(lead.rival), "."] : ["."]),
    );
    this.chart?.at(strengths[0]);
  }

  counterexample(pixels, strengths) {
    const { answer } = this,
      found = answer.counterexample,
      before = el("canvas", { role: "img", "aria-label": "The original picture", width: 1, height: 1 });
    const after = el("canvas", {
      role: "img",
      "aria-label": answer.required ? "The counterexample" : `The counterexample, classified as ${found.words}`,
      width: 1,
      height: 1,
    });
    draw(before, this.image, pixels);
    draw(after, this.image, this.path(strengths));
    const replay = found.replayed
      ? answer.required
        ? "Confirmed by the runtime: its outputs fail."
        : "Confirmed by the runtime."
      : "Proved in real arithmetic; the float32 runtime does not show it.";
    return [
      el("h4", {}, "Counterexample"),
      el(
        "div",
        { class: "pictures two" },
        el("figure", {}, before, el("figcaption", {}, el("b", {}, name(answer.predictedWords ?? answer.holdsWords)))),
        el(
          "figure",
          {},
          after,
          el("figcaption", {}, el("b", {}, name(found.words)), ` at z = ${strengths.map(plain).join(", ")}`),
        ),
      ),
      el(
        "p",
        { class: "dim" },
        `${replay} Margin${answer.required ? "" : " of the label"}: ${found.margin.toPrecision(4)}.`,
      ),
    ];
  }

  others() {
    const own = this.report.answers
      .filter(
        (answer) =>
          answer.image === this.answer.image &&
          answer.model === this.answer.model &&
          answer.requirement === this.answer.requirement,
      )
      .sort(SORTS.weakest[1]);
    const button = (answer) =>
      el(
        "button",
        { type: "button", "aria-current": answer === this.answer ? "true" : null, onclick: () => this.open(answer) },
        name(this.report.perturbations[answer.perturbation].words),
        track(answer),
        el(
          "span",
          { class: "at" },
          mark(answer.status),
          " ",
          answer.briefly,
          el("span", { class: "hidden" }, `, ${VERDICTS[answer.status][1]}`),
        ),
      );
    const rest = own.slice(8),
      more = el(
        "details",
        {},
        el("summary", {}, `${rest.length} more`),
        el("div", { class: "others" }, rest.map(button)),
      );
    return el("div", { class: "others" }, own.slice(0, 8).map(button), rest.length ? more : null);
  }

  facts() {
    const { answer, kind, image } = this,
      model = this.report.models[answer.model],
      one = kind.parts.length === 1;
    const rows = [
      ["required", answer.required ?? "the label wins"],
      [
        "label",
        answer.labelWords + (answer.label_predicted ? " (none came with the image: the prediction is taken)" : ""),
      ],
      ...(answer.required ? [] : [["predicted at strength 0", answer.predictedWords ?? "no class"]]),
      ["analysed up to strength", [answer.strength].flat().map(plain).join(", ")],
      [
        "certified up to",
        one ? down(answer.reached, 9) : answer.proved === null ? "–" : "all of it",
      ],
      ["critical strength", one && answer.lost < Infinity ? `${answer.reached} to ${answer.lost}` : "none found"],
      ["smallest margin found", answer.min_margin === null ? "–" : answer.min_margin.toPrecision(5)],
      ["method", `${answer.method}, ${words(answer.pieces, "piece")}`],
      ["rounding", answer.rounding === "rigorous" ? "enclosed (rigorous)" : "ignored (nominal)"],
      ["arithmetic", answer.arithmetic],
      ["seconds", plain(answer.seconds)],
      ["certificate, SHA-256", answer.certificate ?? answer.unproved ?? "none was written"],
      ["checked", answer.checked ?? "no"],
      ["image", image.name],
      ["SHA-256 of its pixels", image.sha256],
      ["network, SHA-256", model.sha256],
      ["perturbation", kind.text],
    ];
    return el(
      "dl",
      { class: "facts" },
      rows.map(([term, said]) => el("div", {}, el("dt", {}, term), el("dd", {}, name(String(said))))),
    );
  }
}
