// The live page: receives changes, fetches itself anew and replaces the parts that differ; and sends what buttons do.
// Parts are elements with `data-part` and an id. Without this script a page is complete, but stands still.

const shown = new Map(); // by id: a part as the server last sent it
for (const part of document.querySelectorAll("[data-part]")) shown.set(part.id, part.outerHTML);
let wanted = false, busy = false;

// What a person has done to a part stays: focus, folded and unfolded lists, how far a table was moved.
function replacePart(old, fresh) {
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  const moved = [...old.querySelectorAll(".scroll")].map(box => box.scrollLeft);
  const open = [...old.querySelectorAll("details")].map(box => box.open);
  old.replaceWith(fresh);
  fresh.querySelectorAll(".scroll").forEach((box, i) => { box.scrollLeft = moved[i] || 0; });
  fresh.querySelectorAll("details").forEach((box, i) => { box.open = !!open[i]; });
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

async function refresh() {
  wanted = true;
  if (busy) return;
  busy = true;
  while (wanted) {
    wanted = false;
    const start = performance.now();
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.ok) update(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch { /* the server is away: EventSource notices, and comes back with it */ }
    // a page that is costly to make is not asked for all the time
    await new Promise(done => setTimeout(done, Math.max(250, 2 * (performance.now() - start))));
  }
  busy = false;
}

function update(page) {
  const kept = new Set();
  let before = null;
  for (const fresh of page.querySelectorAll("[data-part]")) {
    kept.add(fresh.id);
    const html = fresh.outerHTML, old = document.getElementById(fresh.id);
    if (shown.get(fresh.id) !== html) {
      shown.set(fresh.id, html);
      if (old) replacePart(old, fresh);
      else if (before) before.after(fresh);
      else document.querySelector("main").append(fresh);
    }
    before = document.getElementById(fresh.id);
  }
  for (const part of document.querySelectorAll("[data-part]")) if (!kept.has(part.id)) { shown.delete(part.id); part.remove(); }
  const switches = page.getElementById("switches"), here = document.getElementById("switches");
  if (switches && (!here || here.children.length !== switches.children.length)) {
    if (here) here.replaceWith(switches);
    else document.querySelector("main [data-part]").after(switches);
  }
  hideTip();
  readSwitches();
}

const live = document.getElementById("live");
let since = null;

function listen() {
  const source = new EventSource("/events");
  source.addEventListener("hello", () => {
    live.textContent = "live";
    if (since) refresh(); // something may have changed while the server was away
    since = Date.now();
  });
  source.addEventListener("changed", refresh);
  source.addEventListener("error", () => { live.textContent = "not connected"; });
}

document.addEventListener("change", event => {
  if (event.target.matches?.("select[data-goes]")) location.href = event.target.value;
});

// -- buttons

const notice = document.getElementById("notice");

function say(words) {
  notice.textContent = words;
  notice.hidden = !words;
}

async function act(what, form) {
  say("");
  try {
    const answer = await fetch("/act/" + what, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(form) });
    const text = await answer.text();
    let found = {};
    try { found = JSON.parse(text); } catch { found.error = text; }
    if (!answer.ok) say(found.error || "that did not work");
    return answer.ok;
  } catch {
    say("the server does not answer");
    return false;
  } finally {
    refresh();
  }
}

document.addEventListener("click", event => {
  const button = event.target.closest?.("button");
  if (!button) return;
  if (button.dataset.act) act(button.dataset.act, { name: button.dataset.name });
});
document.addEventListener("submit", async event => {
  event.preventDefault();
  const form = event.target;
  if (await act(form.dataset.act, Object.fromEntries(new FormData(form)))) form.reset();
});

listen();
