/* The data of this page: deflated, in base64, in blocks that no browser runs; unpacked when first needed. */

const unpacked = new Map();

function block(id) {
  if (!unpacked.has(id)) unpacked.set(id, unpack(document.getElementById(id).textContent));
  return unpacked.get(id);
}

async function unpack(text) {
  const letters = atob(text);
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

const parsed = async (id) => JSON.parse(new TextDecoder().decode(await block(id)));

/* Answers come as columns; what is only drawn, as far as there was room for it. */
async function contents() {
  const [report, drawings] = await Promise.all([parsed("contents"), parsed("drawings")]);
  const columns = Object.entries(report.answers);
  report.answers = columns[0][1].map((_, number) => ({
    ...Object.fromEntries(columns.map(([key, values]) => [key, values[number]])),
    margins: drawings.margins[number] ?? null,
    slopes: drawings.slopes[number] ?? null,
  }));
  report.images.forEach((image, number) => (image.pixels = drawings.pixels[number] ?? null));
  report.notices.push(...drawings.notices);
  return report;
}

/* Whole numbers from `low` to `high`, as the page keeps what it only draws. */
async function levels({ block: id, at, count, bits, low, high }) {
  const kept = await block(id);
  const numbers = bits === 8 ? new Uint8Array(kept, at, count) : new Uint16Array(kept.slice(at, at + 2 * count));
  return Float64Array.from(numbers, (n) => low + ((high - low) * n) / (2 ** bits - 1));
}

/* The label's lead over some rivals: z (rows) and leads (rows by rivals). */
async function margins(answer) {
  const { rivals, z, leads } = answer.margins;
  const [places, values] = await Promise.all([levels(z), levels(leads)]);
  return { rivals, z: places, of: (row, rival) => values[row * rivals.length + rival] };
}
