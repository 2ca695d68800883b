// Shows the values under the pointer, for charts (data-chart) and heat maps (data-cells). Without it the page is complete.

const tip = document.createElement("div");
tip.id = "tip";
document.body.append(tip);

function place(event) {
  tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  let x = event.clientX + 16, y = event.clientY + 16;
  if (x + box.width > innerWidth - 8) x = Math.max(8, event.clientX - box.width - 16);
  if (y + box.height > innerHeight - 8) y = Math.max(8, event.clientY - box.height - 16);
  tip.style.left = x + "px";
  tip.style.top = y + "px";
}

function hide() {
  tip.style.display = "none";
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

function nearest(xs, x) {
  let best = 0;
  for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
  return best;
}

// A line of a chart: n its name, c its style; of each point x and y in the picture, t the value and l the round in words.
// `marks` are thin upright lines: x and words.
for (const svg of document.querySelectorAll("svg[data-chart]")) {
  const chart = JSON.parse(svg.dataset.chart);
  const cursor = svg.querySelector(".cursor");
  svg.addEventListener("pointermove", event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const distance = ([line, i]) => Math.abs(line.x[i] - at.x);
    const hits = chart.rows.map(line => [line, nearest(line.x, at.x)]).filter(hit => distance(hit) <= 40);
    cursor.replaceChildren();
    tip.replaceChildren();
    if (!hits.length) return hide();
    const [line, i] = hits.reduce((a, b) => distance(b) < distance(a) ? b : a);
    addRow("", chart.label + " " + line.l[i]);
    for (const [x, words] of chart.marks || []) if (Math.abs(x - at.x) <= 5) addRow("", words);
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
    place(event);
  });
  svg.addEventListener("pointerleave", () => {
    cursor.replaceChildren();
    hide();
  });
}

// The clients or rounds that a cell stands for: "7", or "7–9".
function span(cell, each, first) {
  const from = first + Math.floor(cell * each), to = first + Math.ceil((cell + 1) * each) - 1;
  return from === to ? "" + from : from + "–" + to;
}

// A cell is a byte: 0 nothing, 1 zero, then 64 levels up to `most`.
for (const map of document.querySelectorAll("img[data-cells]")) {
  const cells = atob(map.dataset.cells);
  const [columns, rows, perColumn, perRow, first, most] = map.dataset.shape.split(",").map(Number);
  const [rowName, columnName, nothing, zero] = JSON.parse(map.dataset.names);
  map.addEventListener("pointermove", event => {
    const box = map.getBoundingClientRect();
    const column = Math.min(columns - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * columns)));
    const row = Math.min(rows - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * rows)));
    const level = cells.charCodeAt(row * columns + column), part = (level - 2) / 63;
    tip.replaceChildren();
    addRow("", `${rowName} ${span(row, perRow, 0)}, ${columnName} ${span(column, perColumn, first)}`);
    addRow("", level === 0 ? nothing : level === 1 ? zero : most === 1 ? Math.round(part * 100) + " %" : "" + Math.round(part * most));
    place(event);
  });
  map.addEventListener("pointerleave", hide);
}
