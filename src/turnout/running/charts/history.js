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

function nameOf(run, client) {
  return run.names[client] ?? "" + client;
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
  const own = svg.querySelector(".own"), row = { n: "client " + nameOf(run, run.clients[client]), c: run.style, x: [], y: [], t: [], l: [] };
  for (let k = 0; k < run.x.length; k++) {
    const found = level(client, k);
    if (!found) continue;
    const part = (found - 1) / HIGHEST;
    row.x.push(run.x[k]);
    row.y.push(Math.round(10 * (quantity.from + part * (quantity.to - quantity.from))) / 10);
    const value = quantity.low + part * (quantity.high - quantity.low);
    row.t.push(quantity.client ? nameOf(run, Math.round(value)) : inWords(value, quantity.unit));
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

// A list of choices; it is hidden where there is nothing to choose, and keeps what was chosen where it still can.
function offer(select, choices) {
  const before = select.value;
  select.replaceChildren(...choices.map(([value, words]) => new Option(words, value)));
  select.value = choices.some(([value]) => "" + value === before) ? before : choices[0][0];
  select.closest("label").hidden = choices.length < 2;
}

for (const part of document.querySelectorAll("[data-history]")) {
  const about = JSON.parse(part.dataset.history), charts = part.querySelectorAll("svg.chart");
  const [variants, seeds, clients] = ["variant", "seed", "client"].map(name => part.querySelector(`select[name=${name}]`));
  const chosen = () => about.runs.find(run => run.variant === variants.value && run.seed === seeds.value);

  const listSeeds = () => offer(seeds, about.runs.filter(run => run.variant === variants.value).map(run => [run.seed, run.seed]));
  const listClients = () => {
    const run = chosen();
    offer(clients, run.clients.map((c, i) => [c, nameOf(run, c) + (run.values[i] ? " (" + run.values[i] + ")" : "")]));
  };
  const draw = async () => {
    const run = chosen();
    run.levels ??= await levelsOf(run, about.quantities);
    const client = run.clients.indexOf(+clients.value);
    if (run === chosen()) charts.forEach((svg, q) => drawQuantity(svg, about.quantities[q], run, run.levels[q], client));
  };
  variants.addEventListener("change", () => { listSeeds(); listClients(); draw(); });
  seeds.addEventListener("change", () => { listClients(); draw(); });
  clients.addEventListener("change", draw);
  offer(variants, [...new Set(about.runs.map(run => run.variant))].map(name => [name, name]));
  listSeeds();
  listClients();
  part.hidden = false;
  draw();
}
