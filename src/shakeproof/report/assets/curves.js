/* The label's lead over its rivals along one path, and who wins where. */

/* What holds at strengths z, in words; certified only where that was proved. */
function standing(answer, strengths) {
  const [z] = strengths,
    several = strengths.length > 1,
    found = answer.counterexample;
  const part = several ? undefined : answer.profile.find(({ from, to }) => z >= from && z <= to);
  if (strengths.every((own) => own === 0) && answer.predictedWords !== null)
    return { winner: answer.predictedWords, text: "at strength 0" };
  if (several && answer.status === "safe")
    return { winner: answer.holdsWords, text: "certified for all these strengths" };
  if (!several && proved(answer, z))
    return { winner: answer.holdsWords, text: "certified for every strength up to here" };
  if (found && [found.strength].flat().join() === strengths.join())
    return { winner: found.words, text: "the counterexample" };
  if (!part?.proved)
    return {
      winner: null,
      text: part ? `undecided here; float64 shows ${part.words}, without proof` : "undecided here",
    };
  return {
    winner: part.words,
    text: part.class === answer.label ? "the label again, after it was lost" : "not the label",
  };
}

class MarginChart {
  /* `moved` is called with a strength that was pointed at. */
  constructor(answer, curve, moved) {
    Object.assign(this, { answer, curve, moved, end: [answer.strength].flat()[0], z: 0, place: () => {} });
    this.body = responsive(300, (width, height) => this.drawn(width, height), { "aria-label": this.spoken() });
  }

  at(z) {
    this.z = z;
    this.place();
  }

  /* The smallest lead at z, and over whom; null where there is no curve. */
  lead(z) {
    if (!this.curve || z > this.curve.z.at(-1)) return null;
    const { z: places, of, rivals } = this.curve;
    let row = 0;
    while (row < places.length - 2 && places[row + 1] <= z) row++;
    const share = Math.min(Math.max((z - places[row]) / (places[row + 1] - places[row] || 1), 0), 1);
    const values = rivals.map((_, r) => of(row, r) * (1 - share) + of(row + 1, r) * share);
    const least = values.indexOf(Math.min(...values));
    return { value: values[least], rival: rivals[least].words };
  }

  drawn(width, height) {
    const { curve, answer, end } = this;
    const values = curve ? curve.rivals.flatMap((_, r) => [...curve.z].map((_, row) => curve.of(row, r))) : [0, 1];
    const high = Math.max(...values, 0) || 1,
      low = Math.min(...values, -0.12 * high);
    const plot = frame(width, height, end, low, high, ticks(low, high), 48, 58, 8),
      { x, y, left, right, top, bottom } = plot;
    const line = svg("line", { class: "now", y1: top, y2: bottom + 48 });
    const dot = svg("circle", { r: 5, fill: "var(--ink)", stroke: "var(--card)", "stroke-width": 2 });
    this.place = () => {
      const lead = this.lead(this.z);
      fill(line, { x1: x(this.z), x2: x(this.z) }, []);
      fill(dot, { cx: x(this.z), cy: y(lead ? lead.value : 0), visibility: lead ? "visible" : "hidden" }, []);
    };
    this.place();
    const zero = svg("line", { class: "zero", x1: left, x2: right, y1: y(0), y2: y(0) });
    return [
      ...this.shades(plot),
      ...plot.axes,
      zero,
      ...this.lines(plot),
      ...answer.profile.flatMap((part) => this.stretch(part, plot)),
      line,
      dot,
      this.sensitive(plot),
    ];
  }

  /* Certified from 0 on, violated, not settled: by what was proved, not by where the curves are. */
  shades({ x, top, bottom }) {
    const { answer, end } = this,
      sure = Math.min(answer.reached, end),
      isOpen = answer.status === "undecided";
    const region = (from, to, colour, opacity = 1) =>
      to > from
        ? svg("rect", { x: x(from), width: x(to) - x(from), y: top, height: bottom - top, fill: colour, opacity })
        : null;
    const shown = Math.max(answer.profile.at(-1)?.to ?? 0, sure),
      behind = isOpen ? end : Math.max(Math.min(answer.lost, end), shown),
      violated = answer.profile.filter((part) => part.proved && part.class !== answer.label),
      open = answer.profile.filter((part) => !part.proved);
    return [
      region(0, sure, "var(--safe-tint)"),
      ...violated.map((part) => region(part.from, part.to, "var(--lost-tint)")),
      ...open.map((part) => region(Math.max(part.from, sure), part.to, "url(#hatch)", 0.35)),
      region(shown, behind, "url(#hatch)", 0.35),
    ];
  }

  lines({ x, y }) {
    const path = (r) =>
      "M" + [...this.curve.z].map((z, row) => `${x(z).toFixed(1)},${y(this.curve.of(row, r)).toFixed(1)}`).join("L");
    return this.curve
      ? this.curve.rivals.map((_, r) =>
          svg("path", { class: "step", stroke: ordered(r), "stroke-dasharray": dashed(r), d: path(r) }),
        )
      : [];
  }

  /* Who wins on one stretch, below the plot; with a name where it fits. */
  stretch(part, { x, bottom }) {
    const wide = x(part.to) - x(part.from),
      isLabel = part.class === this.answer.label;
    const [inside, edge] = isLabel ? ["var(--safe-tint)", "var(--safe)"] : ["var(--lost-tint)", "var(--lost)"];
    const middle = { x: (x(part.from) + x(part.to)) / 2, y: bottom + 41, "text-anchor": "middle" };
    return [
      svg("rect", {
        x: x(part.from),
        width: Math.max(wide - 1, 0.5),
        y: bottom + 26,
        height: 22,
        rx: 3,
        fill: part.proved ? inside : "url(#hatch)",
        stroke: edge,
        "stroke-width": 0.8,
      }),
      wide > 7.2 * part.words.length + 6 ? svg("text", { class: "strong", ...middle }, part.words) : null,
    ];
  }

  /* Where a finger or a mouse moves the strength; the slider does the same for a keyboard. */
  sensitive({ left, right, top, bottom }) {
    const follow = (event) => {
      if (event.type === "pointermove" && !event.buttons) return;
      const box = event.currentTarget.getBoundingClientRect(),
        share = (event.clientX - box.left) / box.width;
      this.moved(Math.min(Math.max(share, 0), 1) * this.end);
    };
    return svg("rect", {
      x: left,
      width: right - left,
      y: top,
      height: bottom - top + 48,
      fill: "transparent",
      css: { cursor: "ew-resize", "touch-action": "pan-y" },
      onpointerdown: follow,
      onpointermove: follow,
    });
  }

  /* The chart in words. */
  spoken() {
    const proved = this.answer.profile.filter((part) => part.proved),
      parts = proved.map((part) => `${part.words} from ${plain(part.from)} to ${plain(part.to)}`);
    return `Margin against strength. ${this.answer.sentence}. ${parts.length ? "Proved to win: " + parts.join(", ") : ""}`;
  }

  key() {
    const box = (css, text) => el("li", {}, el("span", { class: "box", css }), text);
    const rivals = this.curve
      ? this.curve.rivals.map((rival, r) => el("li", {}, sample(r), ...(rival.words ? ["over ", name(rival.words)] : ["margin"])))
      : [];
    return el(
      "ul",
      { class: "key" },
      rivals,
      box({ background: "var(--safe-tint)", outline: "1px solid var(--safe)" }, "certified from strength 0"),
      box({ background: "var(--lost-tint)", outline: "1px solid var(--lost)" }, "violated"),
      box(
        { background: "repeating-linear-gradient(45deg, var(--open) 0 2px, var(--open-tint) 2px 6px)" },
        "not proved",
      ),
    );
  }
}

function ticks(low, high) {
  const step = 10 ** Math.floor(Math.log10(high - low)),
    many = (high - low) / step,
    by = many > 5 ? 2 * step : many > 2.2 ? step : step / 2;
  const found = [];
  for (let value = Math.ceil(low / by) * by; value <= high; value += by)
    found.push([value, plain(value).replace("-", "−")]);
  return found;
}
