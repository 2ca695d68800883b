// Shows the values under the pointer, or at the arrow keys, for charts (data-chart) and heat maps (data-shape), and
// switches variants on and off. Without it the page is complete. Listeners are the document's, since a live page
// replaces its charts.

const tip = document.createElement("div");
tip.id = "tip";
tip.setAttribute("role", "status");
document.body.append(tip);

function placeTip(x, y) {
  tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  let left = x + 16, top = y + 16;
  if (left + box.width > innerWidth - 8) left = Math.max(8, x - box.width - 16);
  if (top + box.height > innerHeight - 8) top = Math.max(8, y - box.height - 16);
  tip.style.left = left + "px";
  tip.style.top = top + "px";
}

function hideTip() {
  tip.style.display = "none";
  for (const cursor of document.querySelectorAll(".cursor")) cursor.replaceChildren();
}

// One line of the tip. textContent, never innerHTML: names are a person's own words.
function addRow(name, value, style) {
  const row = document.createElement("div");
  if (name) {
    const label = document.createElement("span");
    label.textContent = name;
    label.className = style;
    row.append(label);
  }
  const number = document.createElement("em");
  number.textContent = value;
  row.append(number);
  tip.append(row);
}

// Bytes that were compressed (zlib).
async function inflatedBytes(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// -- charts

function nearest(xs, x) {
  let best = 0;
  for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
  return best;
}

const parsed = new WeakMap();

// A line of a chart: n its name, c its style, v its variants; of each point x and y in the picture, t the value and l
// the round in words. `marks` are things that happened: x and words.
function chartOf(svg) {
  const known = parsed.get(svg);
  if (known && known.text === svg.dataset.chart) return known.chart;
  const chart = JSON.parse(svg.dataset.chart);
  parsed.set(svg, { text: svg.dataset.chart, chart });
  return chart;
}

function isOff(variants) {
  return !!variants && variants.split(" ").every(v => off.has(v));
}

function showChart(svg, x, clientX, clientY) {
  const chart = chartOf(svg), cursor = svg.querySelector(".cursor");
  const distance = ([line, i]) => Math.abs(line.x[i] - x);
  const lines = (chart.rows || []).filter(line => !isOff(line.v));
  const hits = lines.map(line => [line, nearest(line.x, x)]).filter(hit => distance(hit) <= 40);
  hideTip();
  tip.replaceChildren();
  if (!hits.length) return null;
  const [line, i] = hits.reduce((a, b) => distance(b) < distance(a) ? b : a);
  addRow("", chart.label + " " + line.l[i]);
  for (const [at, words] of chart.marks || []) if (Math.abs(at - x) <= 5) addRow("", words);
  hits.sort((a, b) => a[0].y[a[1]] - b[0].y[b[1]]);
  for (const [line, i] of hits) {
    addRow(line.n, line.t[i], line.c.split(" ")[0]);
    const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    dot.setAttribute("class", "dot " + line.c);
    dot.setAttribute("cx", line.x[i]);
    dot.setAttribute("cy", line.y[i]);
    dot.setAttribute("r", 3.5);
    cursor.append(dot);
  }
  placeTip(clientX, clientY);
  return line.x[i];
}

// The arrow keys go from point to point of the longest line; Escape and leaving the chart end it.
const reached = new WeakMap();

function stepChart(svg, step) {
  const lines = (chartOf(svg).rows || []).filter(line => !isOff(line.v));
  if (!lines.length) return;
  const xs = lines.reduce((a, b) => b.x.length > a.x.length ? b : a).x;
  const before = reached.has(svg) ? nearest(xs, reached.get(svg)) : step > 0 ? -1 : xs.length;
  const x = xs[Math.min(xs.length - 1, Math.max(0, before + step))];
  reached.set(svg, x);
  const box = svg.getBoundingClientRect();
  showChart(svg, x, box.left + x / 520 * box.width, box.top + box.height / 3);
}

// -- heat maps

const levels = new WeakMap();

// The cells of a map, read from its picture: after 8 bytes a PNG is chunks of length, kind, data and check sum, and a
// line of an uncompressed picture begins with one byte that says so.
async function cellsOf(map) {
  const data = Uint8Array.from(atob(map.src.split(",")[1]), letter => letter.charCodeAt(0)), view = new DataView(data.buffer);
  for (let at = 8; at < data.length; at += 12 + view.getUint32(at)) {
    const kind = String.fromCharCode(...data.subarray(at + 4, at + 8));
    if (kind === "IDAT") return inflatedBytes(data.subarray(at + 8, at + 8 + view.getUint32(at)));
  }
  return new Uint8Array();
}

// The rounds that a column stands for: "7", or "7–9".
function span(cell, each, first) {
  const from = first + Math.floor(cell * each), to = first + Math.ceil((cell + 1) * each) - 1;
  return from === to ? "" + from : from + "–" + to;
}

// A cell is a byte: 0 nothing, 1 zero, then 64 levels up to `most`.
async function showMap(map, event) {
  const [x, y] = [event.clientX, event.clientY];
  if (!levels.has(map)) levels.set(map, { cells: await cellsOf(map), rows: JSON.parse(map.dataset.rows), columns: map.dataset.columns && JSON.parse(map.dataset.columns) });
  const { cells, rows: names, columns: across } = levels.get(map);
  const [columns, rows, each, first, most] = map.dataset.shape.split(",").map(Number);
  const [rowName, columnName, nothing, zero] = JSON.parse(map.dataset.names);
  const box = map.getBoundingClientRect();
  const column = Math.min(columns - 1, Math.max(0, Math.floor((x - box.left) / box.width * columns)));
  const row = Math.min(rows - 1, Math.max(0, Math.floor((y - box.top) / box.height * rows)));
  const level = cells[row * (columns + 1) + 1 + column], part = (level - 2) / 63;
  tip.replaceChildren();
  addRow("", `${rowName} ${names[row]}`);
  addRow("", `${columnName} ${across ? across[column] : span(column, each, first)}`);
  addRow("", level === 0 ? nothing : level === 1 ? zero : most === 1 ? Math.round(part * 100) + " %" : Math.round(part * most) + " times");
  placeTip(x, y);
}

document.addEventListener("pointermove", event => {
  const found = event.target.closest?.("svg[data-chart], img[data-shape]");
  if (!found) return tip.style.display === "block" && hideTip();
  if (found.dataset.shape) return showMap(found, event);
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(found.getScreenCTM().inverse());
  showChart(found, at.x, event.clientX, event.clientY);
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape") return hideTip();
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step || !event.target.matches?.("svg[data-chart]")) return;
  event.preventDefault();
  stepChart(event.target, event.shiftKey ? 10 * step : step);
});
document.addEventListener("focusout", event => {
  if (event.target.matches?.("svg[data-chart]")) hideTip();
});

// -- switches: what belongs only to variants that are off is not shown

const off = new Set();

function applySwitches() {
  for (const part of document.querySelectorAll("[data-v]")) part.classList.toggle("off", isOff(part.dataset.v));
}

function readSwitches() {
  off.clear();
  for (const box of document.querySelectorAll("input[data-switch]")) if (!box.checked) off.add(box.dataset.switch);
  applySwitches();
}

document.addEventListener("change", event => {
  if (event.target.matches("input[data-switch]")) readSwitches();
  if (event.target.matches("select[data-chooses=seed]"))
    for (const part of document.querySelectorAll("[data-seed]")) part.hidden = part.dataset.seed !== event.target.value;
});
document.addEventListener("click", event => {
  const all = event.target.closest?.("button[data-all]");
  if (!all) return;
  for (const box of document.querySelectorAll("input[data-switch]")) box.checked = all.dataset.all === "on";
  readSwitches();
});
// A variant's lines stand out while one points at its switch, or has it focused.
for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, event => {
  const label = event.target.closest?.("label.switch");
  document.body.classList.toggle("one", !!label);
  for (const part of document.querySelectorAll("svg [data-v]"))
    part.classList.toggle("chosen", !!label && part.dataset.v.split(" ").includes(label.querySelector("input").dataset.switch));
});
for (const chooser of document.querySelectorAll("select[data-chooses]")) chooser.selectedIndex = 0;
readSwitches();
