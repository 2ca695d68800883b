// The part of one client: draws the chosen client's numbers into frames that all clients share (history.py).

const HIGHEST = 65533;

function inWords(value, unit) {
  if (unit === "percent") return (100 * value).toFixed(1) + " %";
  if (unit === "count") return "" + Math.round(value);
  if (unit !== "bytes") return value.toPrecision(3);
  const names = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  for (; Math.abs(value) >= 999.5 && i < names.length - 1; i++) value /= 1000;
  return +value.toPrecision(3) + " " + names[i];
}

async function levelsOf(run, quantities) {
  const bytes = await inflated(run.data), half = bytes.length / 2;
  const count = run.clients.length * run.x.length;
  return quantities.map((_, q) => (client, column) => {
    const at = q * count + client * run.x.length + column;
    return bytes[at] * 256 + bytes[half + at];
  });
}

function drawQuantity(svg, quantity, run, level, client) {
  const own = svg.querySelector(".own"), row = { n: "client " + run.clients[client], c: run.style, x: [], y: [], t: [], l: [] };
  for (let k = 0; k < run.x.length; k++) {
    const found = level(client, k);
    if (!found) continue;
    const part = (found - 1) / HIGHEST;
    row.x.push(run.x[k]);
    row.y.push(Math.round(10 * (quantity.from + part * (quantity.to - quantity.from))) / 10);
    row.t.push(inWords(quantity.low + part * (quantity.high - quantity.low), quantity.unit));
    row.l.push(run.rounds[k]);
  }
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  line.setAttribute("class", (quantity.joined && row.x.length > 1 ? "line " : "line points ") + run.style);
  const points = row.x.map((x, i) => x + "," + row.y[i]);
  line.setAttribute("d", quantity.joined && row.x.length > 1 ? "M" + points.join("L") : points.map(p => "M" + p + "h.01").join(""));
  own.replaceChildren(line);
  svg.dataset.chart = JSON.stringify({ label: "round", rows: row.x.length ? [row] : [] });
  svg.closest("figure").hidden = !row.x.length;
}

for (const part of document.querySelectorAll("[data-history]")) {
  const about = JSON.parse(part.dataset.history), charts = part.querySelectorAll("svg.chart");
  const runs = part.querySelector("select[name=run]"), clients = part.querySelector("select[name=client]");
  about.runs.forEach((run, i) => runs.append(new Option(run.name, i)));
  runs.closest("label").hidden = about.runs.length < 2;

  const listClients = () => {
    const run = about.runs[runs.value], before = clients.value && about.runs[clients.dataset.run].clients[clients.value];
    clients.replaceChildren(...run.clients.map((c, i) => new Option(c + (run.said[i] ? " (" + run.said[i] + ")" : ""), i)));
    clients.value = Math.max(0, run.clients.indexOf(before));
    clients.dataset.run = runs.value;
  };
  const draw = async () => {
    const run = about.runs[runs.value];
    run.levels ??= await levelsOf(run, about.quantities);
    charts.forEach((svg, q) => drawQuantity(svg, about.quantities[q], run, run.levels[q], +clients.value));
  };
  runs.addEventListener("change", () => { listClients(); draw(); });
  clients.addEventListener("change", draw);
  listClients();
  part.hidden = false;
  draw();
}
