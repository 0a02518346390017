/* One answer: the picture at any strength, the margins along it, and what was found. */

/* What holds at strengths z, in words; certified only where that was proved. */
function standing(answer, strengths) {
  const [z] = strengths, several = strengths.length > 1, zero = strengths.every((own) => own === 0);
  if (zero && answer.predictedWords !== null) return { winner: answer.predictedWords, certain: answer.status === "safe" || answer.proved > 0, text: "the picture at strength 0" };
  const inside = several ? answer.status === "safe" : proved(answer, z);
  const part = several ? null : answer.profile.find(({ from, to }) => z >= from && z <= to);
  if (inside) return { winner: answer.labelWords, certain: true, text: several ? "certified for all these strengths" : "certified for every strength up to here" };
  if (answer.rounding === "nominal" && part) return { winner: part.words, certain: false, text: "rounding was not looked at: no proof" };
  if (answer.status === "undecided") return { winner: part ? part.words : null, certain: false, text: "not settled here" };
  if (part) return { winner: part.words, certain: true, text: part.class === answer.label ? "the label again, beyond where it was first lost" : "not the label any more" };
  return { winner: null, certain: false, text: "not settled here" };
}

class Detail {
  constructor(report, open) {
    Object.assign(this, { report, open, turn: 0 });
    this.body = el("article", { class: "detail", id: "detail", "aria-label": "The chosen answer", tabindex: -1 });
  }

  async show(answer) {
    const turn = ++this.turn, image = this.report.images[answer.image], kind = this.report.perturbations[answer.perturbation];
    Object.assign(this, { answer, image, kind });
    const [pixels, curve] = await Promise.all([image.pixels ? levels(image.pixels) : null, answer.margins ? margins(answer) : null]);
    if (turn !== this.turn) return; // another one was chosen meanwhile
    this.curve = curve;
    this.path = pixels && pathOf(pixels, image.shape, kind);
    const found = answer.counterexample?.strength ?? null, at = found === null ? null : [found].flat();
    this.strengths = at || [answer.strength].flat().map((end) => (answer.proved > 0 && kind.parts.length === 1 ? Math.min(end, answer.proved) : end));
    this.now = el("p", { class: "now-line", role: "status" });
    this.moved = el("canvas", { role: "img", width: 1, height: 1 });
    this.kernel = el("div", { class: "kernel" });
    this.movedCaption = el("figcaption");
    this.kernelCaption = el("figcaption");
    this.chart = curve || answer.profile.length ? responsive(300, (width, height) => this.margins(width, height), { "aria-label": this.spoken() }) : null;
    this.body.replaceChildren(
      el("h3", {}, name(answer.imageWords)), el("p", { class: "verdict" }, chip(answer.status), " ", name(kind.words), " — ", name(answer.told)),
      this.report.models.length > 1 ? el("p", { class: "dim" }, "Network: ", name(this.report.models[answer.model].name)) : "",
      ...(pixels ? [this.pictures(pixels), this.sliders()] : [el("p", { class: "dim" }, "The picture is not kept here.")]), this.now, this.jumps(at),
      ...(this.chart ? [el("h4", {}, "Margin of ", name(answer.labelWords)), this.chart, this.key()] : []),
      ...(at && pixels ? this.counterexample(pixels, at) : []), el("h4", {}, "The same image, otherwise"), this.others(),
      el("h4", {}, "Facts"), this.facts());
    this.move();
  }

  pictures(pixels) {
    const before = el("canvas", { role: "img", "aria-label": `The original picture ${this.answer.imageWords}`, width: 1, height: 1 });
    draw(before, this.image, pixels);
    return el("div", { class: "pictures" }, el("figure", {}, before, el("figcaption", {}, el("b", {}, "original"), ", label ", name(this.answer.labelWords))),
      el("figure", {}, this.moved, this.movedCaption), el("figure", {}, this.kernel, this.kernelCaption));
  }

  sliders() {
    const ends = [this.answer.strength].flat();
    this.inputs = this.kind.parts.map((part, p) => {
      const text = ends.length > 1 ? `Strength of ${part.words}` : "Strength z", common = { min: 0, max: ends[p] };
      const change = (value, from) => { this.strengths[p] = Math.min(Math.max(Number(value) || 0, 0), ends[p]); this.move(from); };
      const range = el("input", { type: "range", ...common, step: ends[p] / 1000 || "any", "aria-label": text, oninput: (event) => change(event.target.value, range) });
      const number = el("input", { type: "number", ...common, step: "any", "aria-label": `${text}, as a number`, onchange: (event) => change(event.target.value, null) });
      return { text, range, number };
    });
    return el("div", { class: "sliders" }, this.inputs.map(({ text, range, number }) =>
      el("div", { class: "one" }, el("label", { css: { "grid-column": "1 / -1" } }, text), range, number)));
  }

  /* To the places that matter: the picture as it is, the end of what is proved, the flip, the counterexample. */
  jumps(found) {
    const { answer } = this, ends = [answer.strength].flat(), one = ends.length === 1, go = (places) => () => { this.strengths = [...places]; this.move(); };
    const flip = one && answer.critical_strength && answer.status !== "misclassified" ? answer.critical_strength[1] : null;
    const places = [["No perturbation", ends.map(() => 0)], ...(one && answer.proved > 0 && answer.proved < ends[0] ? [["End of what is certified", [answer.proved]]] : []),
      ...(flip === null ? [] : [["Where the label is lost", [flip]]]), ...(found ? [["Counterexample", found]] : []), ["Full strength", ends]];
    return el("div", { class: "steps" }, places.map(([text, at]) => el("button", { type: "button", onclick: go(at) }, text)));
  }

  move(from = null) {
    const { answer, strengths } = this, here = standing(answer, strengths), z = strengths.map(plain).join(", ");
    if (this.path) {
      draw(this.moved, this.image, this.path(strengths));
      fill(this.moved, { "aria-label": `The picture at strength ${z}` }, []);
      for (const [p, { range, number, text }] of this.inputs.entries()) {
        if (range !== from) range.value = strengths[p];
        number.value = plain(strengths[p]);
        range.setAttribute("aria-valuetext", `${text} ${plain(strengths[p])}: ${here.winner ?? "not settled"}`);
      }
      this.movedCaption.replaceChildren(el("b", {}, `z = ${z}`), ", ", here.winner === null ? "not settled" : name(here.winner));
      this.drawKernel(kernelAt(this.kind, strengths));
    }
    const lead = this.leadAt(strengths);
    this.now.replaceChildren(`At z = ${z}: `, ...(here.winner === null ? [] : [el("b", {}, name(here.winner)), ", "]), here.text,
      ...(lead === null ? ["."] : [`; margin about ${lead.value.toPrecision(3)} over `, name(lead.rival), "."]));
    if (this.cursor) this.cursor(strengths[0]);
  }

  leadAt([z, ...more]) {
    if (!this.curve || more.length || this.curve.z.length < 2 || z > this.curve.z.at(-1)) return null;
    const { z: places, of, rivals } = this.curve;
    let row = 0;
    while (row < places.length - 2 && places[row + 1] <= z) row++;
    const share = Math.min(Math.max((z - places[row]) / (places[row + 1] - places[row] || 1), 0), 1);
    const values = rivals.map((_, r) => of(row, r) * (1 - share) + of(row + 1, r) * share), least = values.indexOf(Math.min(...values));
    return { value: values[least], rival: rivals[least].words };
  }

  drawKernel({ matrix, offset }) {
    const rows = matrix.length, columns = matrix[0].length, limit = Math.max(...matrix.flat().map(Math.abs), 1e-12), side = 100 / Math.max(rows, columns);
    const left = (100 - side * columns) / 2, top = (100 - side * rows) / 2, centre = matrix[Math.floor(rows / 2)][Math.floor(columns / 2)];
    const cells = matrix.flatMap((entries, i) => entries.map((entry, j) => {
      const share = Math.abs(entry) / limit, strong = share > 0.6, box = { x: left + j * side, y: top + i * side };
      return [svg("rect", { ...box, width: side, height: side, stroke: "var(--line)", "stroke-width": 0.3,
        fill: `color-mix(in oklab, ${entry < 0 ? "var(--lost)" : "var(--safe)"} ${Math.round(100 * share)}%, var(--card))` }),
        Math.max(rows, columns) <= 7 ? svg("text", { x: box.x + side / 2, y: box.y + side / 2 + 1.6, "text-anchor": "middle",
          css: { "font-size": `${Math.min(side / 3.4, 9)}px`, fill: strong ? "var(--card)" : "var(--ink)" } }, Number(entry.toPrecision(2))) : null];
    }));
    if (rows * columns === 1) cells.splice(0, 1, this.tone(centre, offset));
    const sum = matrix.flat().reduce((total, entry) => total + entry, 0), added = offset ? `, ${offset > 0 ? "+" : "−"}${plain(Math.abs(offset))} on every pixel` : "";
    this.kernel.replaceChildren(svg("svg", { viewBox: "0 0 100 100", role: "img", "data-centre": centre,
      "aria-label": `Kernel of ${rows} by ${columns} entries, ${plain(centre)} in the middle, the largest ${plain(Math.max(...matrix.flat()))}, the smallest ${plain(Math.min(...matrix.flat()))}${added}` }, cells.flat()));
    this.kernelCaption.replaceChildren(el("b", {}, rows * columns === 1 ? "tone" : "kernel"), rows * columns === 1 ? ` × ${plain(centre)}${added}` : ` ${rows} × ${columns}, middle ${plain(centre)}, sum ${plain(sum)}${added}`);
  }

  tone(gain, offset) {
    const text = (y, words) => svg("text", { class: "strong", x: 50, y, "text-anchor": "middle", css: { "font-size": "9px" } }, words);
    return [text(44, "every pixel"), text(60, `× ${plain(Number(gain.toPrecision(3)))} ${offset < 0 ? "−" : "+"} ${plain(Number(Math.abs(offset).toPrecision(3)))}`)];
  }

  colour(place) { return ordered(place + 1); }

  margins(width, height) {
    const { answer, curve } = this, [end] = [answer.strength].flat(), values = curve ? curve.rivals.flatMap((_, r) => [...curve.z].map((_, row) => curve.of(row, r))) : [0, 1];
    const high = Math.max(...values, 0) || 1, low = Math.min(...values, -0.12 * high), step = 10 ** Math.floor(Math.log10(high - low)), by = (high - low) / step > 5 ? 2 * step : (high - low) / step > 2.2 ? step : step / 2;
    const ticks = [];
    for (let value = Math.ceil(low / by) * by; value <= high; value += by) ticks.push([value, plain(value).replace("-", "−")]);
    const { x, y, axes, left, right, top, bottom } = frame(width, height, end, low, high, ticks, 48, 58, 8);
    const region = (from, to, fill, opacity = 1) => (to > from ? svg("rect", { x: x(from), width: x(to) - x(from), y: top, height: bottom - top, fill, opacity }) : null);
    const sure = Math.min(answer.proved, end), lostParts = answer.status === "undecided" ? [] : answer.profile.filter((part) => part.class !== answer.label);
    const shades = [region(0, sure, "var(--safe-tint)"), ...lostParts.map((part) => region(Math.max(part.from, sure), part.to, "var(--lost-tint)")),
      answer.status === "undecided" ? region(sure, end, "url(#hatch)", 0.35) : region(sure, Math.min(answer.lost, end), "url(#hatch)", 0.35)];
    const lines = curve ? curve.rivals.map((_, r) => svg("path", { class: "step", stroke: this.colour(r), "stroke-dasharray": dashed(r),
      d: "M" + [...curve.z].map((z, row) => `${x(z).toFixed(1)},${y(curve.of(row, r)).toFixed(1)}`).join("L") })) : [];
    const strip = answer.profile.map((part) => {
      const wide = x(part.to) - x(part.from), own = part.class === answer.label;
      return [svg("rect", { x: x(part.from), width: Math.max(wide - 1, 0.5), y: bottom + 26, height: 22, rx: 3, fill: own ? "var(--safe-tint)" : "var(--lost-tint)", stroke: own ? "var(--safe)" : "var(--lost)", "stroke-width": 0.8 }),
        wide > 7.2 * part.words.length + 6 ? svg("text", { class: "strong", x: (x(part.from) + x(part.to)) / 2, y: bottom + 41, "text-anchor": "middle" }, part.words) : null];
    });
    const line = svg("line", { class: "now", y1: top, y2: bottom + 48 }), dot = svg("circle", { r: 5, fill: "var(--ink)", stroke: "var(--card)", "stroke-width": 2 });
    this.cursor = (z) => {
      const lead = this.leadAt([z]);
      fill(line, { x1: x(z), x2: x(z) }, []);
      fill(dot, { cx: x(z), cy: y(lead ? lead.value : 0), visibility: lead ? "visible" : "hidden" }, []);
    };
    const follow = (event) => {
      if (event.type === "pointermove" && !event.buttons) return;
      const box = event.currentTarget.getBoundingClientRect(), at = (event.clientX - box.left) / box.width;
      this.strengths[0] = Math.min(Math.max(at, 0), 1) * end;
      this.move();
    };
    const sensitive = svg("rect", { x: left, width: right - left, y: top, height: bottom - top + 48, fill: "transparent", css: { cursor: "ew-resize", "touch-action": "pan-y" }, onpointerdown: follow, onpointermove: follow });
    this.cursor(this.strengths[0]);
    return [...shades, ...axes, svg("line", { class: "zero", x1: left, x2: right, y1: y(0), y2: y(0) }), ...lines, ...strip.flat(), line, dot, sensitive];
  }

  /* The chart in words. */
  spoken() {
    const { answer } = this, parts = answer.profile.map((part) => `${part.words} from ${plain(part.from)} to ${plain(part.to)}`);
    return `Margin against strength. ${answer.told}. ${parts.length ? "Winning classes: " + parts.join(", ") : ""}`;
  }

  key() {
    const box = (css, text) => el("li", {}, el("span", { class: "box", css }), text);
    const rivals = this.curve ? this.curve.rivals.map((rival, r) => el("li", {}, svg("svg", { width: 26, height: 8, "aria-hidden": "true", css: { display: "inline-block", width: "26px", "margin-right": ".4em" } },
      svg("line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: this.colour(r), "stroke-width": 2.4, "stroke-dasharray": dashed(r) })), "over ", name(rival.words))) : [];
    return el("ul", { class: "key" }, rivals, box({ background: "var(--safe-tint)", outline: "1px solid var(--safe)" }, "certified from 0 on"),
      box({ background: "var(--lost-tint)", outline: "1px solid var(--lost)" }, "violated"),
      box({ background: "repeating-linear-gradient(45deg, var(--open) 0 2px, var(--open-tint) 2px 6px)" }, "not settled"));
  }

  counterexample(pixels, strengths) {
    const { answer } = this, found = answer.counterexample, before = el("canvas", { role: "img", "aria-label": "The original picture", width: 1, height: 1 });
    const after = el("canvas", { role: "img", "aria-label": `The counterexample, taken for ${found.words}`, width: 1, height: 1 });
    draw(before, this.image, pixels);
    draw(after, this.image, this.path(strengths));
    const replay = found.replayed ? "The runtime itself gives this class for it." : "It is proved in real numbers; the float32 runtime does not show it.";
    return [el("h4", {}, "Counterexample"), el("div", { class: "pictures two" },
      el("figure", {}, before, el("figcaption", {}, el("b", {}, name(answer.predictedWords ?? answer.labelWords)))),
      el("figure", {}, after, el("figcaption", {}, el("b", {}, name(found.words)), ` at z = ${strengths.map(plain).join(", ")}`))),
      el("p", { class: "dim" }, `${replay} Margin of the label: ${found.margin.toPrecision(4)}.`)];
  }

  others() {
    const own = this.report.answers.filter((answer) => answer.image === this.answer.image && answer.model === this.answer.model).sort(SORTS.weakest[1]);
    const button = (answer) => el("button", { type: "button", "aria-current": answer === this.answer ? "true" : null, onclick: () => this.open(answer) },
      name(this.report.perturbations[answer.perturbation].words), track(answer), el("span", { class: "at" }, mark(answer.status), " ", answer.briefly, el("span", { class: "hidden" }, `, ${VERDICTS[answer.status][1]}`)));
    const rest = own.slice(8), more = el("details", {}, el("summary", {}, `${rest.length} more`), el("div", { class: "others" }, rest.map(button)));
    return el("div", { class: "others" }, own.slice(0, 8).map(button), rest.length ? more : null);
  }

  facts() {
    const { answer, kind, image } = this, model = this.report.models[answer.model], bracket = answer.critical_strength;
    const rows = [["label", answer.labelWords + (answer.label_predicted ? " (none came with the image: the prediction is taken)" : "")], ["predicted at strength 0", answer.predictedWords ?? "no class"],
      ["asked up to strength", [answer.strength].flat().map(plain).join(", ")], ["certified up to", kind.parts.length > 1 ? (answer.status === "safe" ? "all of it" : "–") : down(answer.proved, 9)],
      ["critical strength", bracket ? `${bracket[0]} to ${bracket[1]}` : "none found"], ["smallest margin found", answer.min_margin === null ? "–" : answer.min_margin.toPrecision(5)], ["method", `${answer.method}, ${words(answer.pieces, "piece")}`],
      ["rounding", answer.rounding === "rigorous" ? "enclosed (rigorous)" : "not looked at (nominal)"], ["arithmetic", answer.arithmetic], ["seconds", plain(answer.seconds)],
      ["certificate, SHA-256", answer.certificate ?? answer.unproved ?? "none was written"], ["checked", answer.checked ?? "no"], ["image", image.name], ["SHA-256 of its pixels", image.sha256], ["network, SHA-256", model.sha256], ["perturbation", kind.text]];
    return el("dl", { class: "facts" }, rows.map(([term, said]) => el("div", {}, el("dt", {}, term), el("dd", {}, name(String(said))))));
  }
}
