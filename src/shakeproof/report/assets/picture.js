/* x(z) = base + sum of slopes z, clipped: the same convolutions as the tool's own (shakeproof.question). */

/* Where a padded row takes its pixels from; -1 is nothing. */
function sources(length, taps, padding) {
  const before = Math.floor((taps - 1) / 2);
  return Array.from({ length: length + taps - 1 }, (_, place) => {
    const i = place - before;
    if (i >= 0 && i < length) return i;
    if (padding === "zeros") return -1;
    if (padding === "replicate") return i < 0 ? 0 : length - 1;
    if (padding === "circular") return (i + length) % length;
    return i < 0 ? -i : 2 * length - 2 - i;
  });
}

function convolved(pixels, [channels, height, width], matrix, padding) {
  const out = new Float64Array(pixels.length);
  const rows = sources(height, matrix.length, padding),
    columns = sources(width, matrix[0].length, padding);
  matrix.forEach((entries, r) =>
    entries.forEach((entry, s) => {
      if (!entry) return;
      for (let line = 0; line < channels * height; line++) {
        const row = rows[(line % height) + r];
        if (row < 0) continue;
        const from = (line - (line % height) + row) * width,
          to = line * width;
        for (let j = 0; j < width; j++) {
          const column = columns[j + s];
          if (column >= 0) out[to + j] += entry * pixels[from + column];
        }
      }
    }),
  );
  return out;
}

/* The path of one image: what it takes to have the picture at any strengths. `known` has the slopes of parts whose
   kernel differs from pixel to pixel. */
function pathOf(pixels, shape, perturbation, known) {
  const {
    kernel: { start },
    parts,
    clip,
  } = perturbation;
  const kernel = parts.find((part) => part.change);
  const base = kernel ? convolved(pixels, shape, start, kernel.padding) : pixels;
  const slopes = parts.map((part, p) => {
    if (part.linear) return known[p];
    return part.change
      ? convolved(pixels, shape, part.change, part.padding)
      : base.map((value) => part.gain * value + part.offset);
  });
  return (strengths) => {
    const moved = base.slice();
    slopes.forEach((slope, p) => {
      for (let i = 0; i < moved.length; i++) moved[i] += slope[i] * strengths[p];
    });
    return clip ? moved.map((value) => Math.min(Math.max(value, clip[0]), clip[1])) : moved;
  };
}

/* The kernel at some strengths, all parts in one, and what is added to every pixel; null if pixels have kernels of
   their own. */
function kernelAt(perturbation, strengths) {
  if (!perturbation.kernel.changes) return null;
  const matrix = perturbation.kernel.start.map((row, i) =>
    row.map((entry, j) =>
      perturbation.kernel.changes.reduce((sum, change, p) => sum + change[i][j] * strengths[p], entry),
    ),
  );
  const offset = perturbation.parts.reduce((sum, part, p) => sum + (part.offset || 0) * strengths[p], 0);
  return { matrix, offset };
}

/* Pixels that live in a normalised space are stretched over the original's own range. */
function grey(image) {
  const { low, high } = image.pixels;
  const [from, to] = low < -0.75 || high > 1.75 ? [low, high] : [0, 1];
  return (value) => Math.round(255 * Math.min(Math.max((value - from) / (to - from), 0), 1));
}

function draw(canvas, image, pixels) {
  const [channels, height, width] = image.shape,
    level = grey(image),
    size = height * width;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d"),
    data = context.createImageData(width, height);
  const coloured = channels === 3 ? [0, size, 2 * size] : [0, 0, 0];
  for (let i = 0; i < size; i++) {
    for (let c = 0; c < 3; c++) data.data[4 * i + c] = level(pixels[coloured[c] + i]);
    data.data[4 * i + 3] = 255;
  }
  context.putImageData(data, 0, 0);
}

async function drawImage(canvas, image) {
  draw(canvas, image, await levels(image.pixels));
}
