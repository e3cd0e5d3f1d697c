import { draw } from "./charts.js";
import { element, facts, sentence, table } from "./dom.js";
import { drawing } from "./graph.js";
import { follow, get, hasToken, post, setToken } from "./server.js";

const main = document.getElementById("main");
const dialog = document.getElementById("dialog");
const connection = document.getElementById("connection");
let watching = new AbortController();
let looked = null;
const OLD_MS = 30000;
// A table of more columns has the whole width of the page.
const WIDE = 6;

// A section is made again only if what it shows has changed, so that a selection or a scrolled table stays.
class Sections {
  constructor() { this.shown = new Map(); this.last = null; }

  show(id, content, make, kind = "") {
    const text = JSON.stringify(content);
    const before = this.shown.get(id);
    if (before && before.text === text) { before.kept = true; this.last = before.element; return; }
    const made = element("section", { class: kind, id: `section-${id}` }, ...make(content));
    if (before) before.element.replaceWith(made);
    else if (this.last) this.last.after(made);
    else main.prepend(made);
    this.last = made;
    this.shown.set(id, { text, element: made, kept: true });
  }

  sweep() {
    this.last = null;
    for (const [id, each] of this.shown) {
      if (!each.kept) { each.element.remove(); this.shown.delete(id); }
      each.kept = false;
    }
  }
}

function open(job) {
  watching.abort();
  watching = new AbortController();
  main.replaceChildren();
  document.title = job ? `${job} – Penstock` : "Penstock";
  document.getElementById("title").textContent = job || "All jobs";
  const sections = new Sections();
  const show = job ? (found) => showJob(job, found, sections) : (found) => showJobs(found, sections);
  let seen = false;
  looked = null;
  follow(job, watching.signal, (found) => {
    seen = true;
    looked = found.looked_ms;
    showAge();
    if (Object.keys(found).length === 1) return;
    if (found.error) sections.show("error", found.error, (text) => [sentence(text)], "wide verdict bad");
    else show(found);
    sections.sweep();
  }, (reason, status) => {
    looked = null;
    connection.className = "lost";
    connection.textContent = seen ? `${reason}; what you see is old` : reason;
    if (status === 401) askForToken(() => open(job));
  });
}

// When the server has looked last. It waits for an object store that does not answer, for example.
function showAge() {
  if (looked === null) return;
  const old = Date.now() - looked > OLD_MS;
  connection.className = old ? "lost" : "";
  connection.textContent = `as of ${new Date(looked).toLocaleTimeString()}${old ? "; what you see is old" : ""}`;
}

function showJobs(found, sections) {
  sections.show("jobs", found.jobs, (jobs) => jobs.length === 0
    ? [sentence("There is no job in this root yet.")]
    : jobs.map((each) => element("div", { class: `verdict ${each.verdict.level}`, style: "padding: 6px 12px; margin: 8px 0" },
      sentence(each.verdict.text),
      element("a", { href: `#job=${encodeURIComponent(each.job)}` }, each.job),
      element("span", { class: "quiet" }, each.checkpoint ? ` last checkpoint ${each.checkpoint}${each.at ? ` of ${each.at}` : ""}` : ""))), "wide");
}

function showJob(job, found, sections) {
  const { verdict } = found;
  sections.show("verdict", [verdict, found.next, found.traceback, found.actions], () => [
    sentence(verdict.text), ...verdict.why.map((text) => sentence(text)),
    ...found.next.map((text) => sentence(text, "p", { class: "quiet" })),
    found.traceback ? element("pre", { id: "traceback" }, found.traceback) : null,
    element("div", { class: "buttons" }, ...found.actions.map((name) =>
      element("button", { onclick: () => act(job, name, found), title: "says first what it will do" }, `${name}…`))),
  ], `wide verdict ${verdict.level}`);
  if (found.graph) {
    sections.show("graph", found.graph, (graph) => [element("h2", {}, "Graph"), element("div", { class: "scroll" }, drawing(graph))], "wide");
  }
  showCharts(found.series, sections);
  sections.show("facts", [found.facts, found.notes], ([pairs, notes]) => [
    element("h2", {}, "Job"), facts(pairs), ...notes.map((text) => sentence(text, "p", { class: "note" })),
  ]);
  for (const each of found.tables) sections.show(`table-${each.title}`, each, table, each.columns.length > WIDE ? "wide" : "");
  if (found.stores.length) sections.show("stores", found.stores, (stores) => browser(job, stores));
  sections.show("more", job, () => more(job));
}

function showCharts(series, sections) {
  if (series.times.length < 2) return;
  const names = ["rate", "lag", "parts"];
  const place = (name) => document.getElementById(`chart-${name}`);
  for (const name of names) {
    const id = `chart-of-${name}`;
    sections.show(id, name, () => [element("div", { class: "chart", id: `chart-${name}` })], name === "parts" ? "wide" : "");
  }
  draw(Object.fromEntries(names.map((name) => [name, place(name)])), series).catch((error) => {
    for (const name of names) place(name).textContent = error.message;
  });
}

async function ask(place, path, body) {
  place.replaceChildren(sentence("Reading…", "p", { class: "quiet" }));
  try {
    const found = await post(path, body);
    place.replaceChildren(...("text" in found
      ? [element("h2", {}, found.title), element("pre", {}, found.text)]
      : table(found).filter(Boolean)));
  } catch (error) {
    place.replaceChildren(sentence(error.message));
    if (error.status === 401) askForToken(() => ask(place, path, body));
  }
}

function browser(job, stores) {
  const store = element("select", { name: "store", "aria-label": "store" }, ...stores.map((name) => element("option", {}, name)));
  const key = element("input", { name: "key", placeholder: "key, or 0x…; empty: the first", "aria-label": "key" });
  const found = element("div", { id: "entries" });
  const look = (event) => {
    event.preventDefault();
    ask(found, "/api/look/entries", { job, store: store.value, key: key.value });
  };
  return [
    element("h2", {}, "Look into a store"),
    sentence("As of the last checkpoint, read-only. The store is restored to a scratch folder on the dashboard's host.", "p", { class: "note" }),
    element("form", { onsubmit: look }, store, key, element("button", {}, "Look up")),
    found,
  ];
}

function more(job) {
  const found = element("div", {});
  const button = (name, what) => element("button", { onclick: () => ask(found, `/api/look/${what}`, { job }) }, name);
  return [
    element("h2", {}, "More"),
    element("div", { class: "buttons" }, button("Logs of containers", "logs"), button("Dead letters", "letters"), button("Sizes of objects", "sizes")),
    found,
  ];
}

function show(...children) {
  dialog.replaceChildren(...children);
  if (!dialog.open) dialog.showModal();
}

const close = () => dialog.close();
const cancel = () => element("button", { type: "button", onclick: close }, "Cancel");

function act(job, name, found) {
  if (!hasToken()) return askForToken(() => act(job, name, found));
  return name === "startpoint" ? askForStartpoint(job, found) : plan(job, name, {});
}

async function plan(job, name, given) {
  const path = `/api/do/${encodeURIComponent(name)}`;
  const done = async (confirmed) => {
    try {
      return await post(path, { ...given, job, confirmed, plan: confirmed ? planned.lines : [] });
    } catch (error) {
      if (error.status === 401) askForToken(() => plan(job, name, given));
      else show(element("h2", {}, name), sentence(error.message), element("div", { class: "buttons" }, element("button", { onclick: close }, "Close")));
      return null;
    }
  };
  let planned = null;
  planned = await done(false);
  if (planned === null) return;
  const confirm = element("button", { class: "danger", id: "confirm", onclick: async () => {
    confirm.disabled = true;
    const result = await done(true);
    if (result !== null) show(element("h2", {}, name), ...result.lines.map((line) => sentence(line)), element("div", { class: "buttons" }, element("button", { id: "done", onclick: close }, "Close")));
  } }, `Yes: ${name}`);
  show(element("h2", {}, `${name}: ${job}`), ...planned.lines.map((line) => sentence(line)), element("div", { class: "buttons" }, confirm, cancel()));
}

function askForStartpoint(job, found) {
  const choice = (name, values) => element("select", { name, "aria-label": name }, ...values.map((value) => element("option", {}, value)));
  const stream = choice("stream", found.inputs), kind = choice("kind", ["oldest", "upcoming", "timestamp", "offset"]);
  const value = element("input", { name: "value", placeholder: "offset, or epoch milliseconds", "aria-label": "value" });
  const partitions = element("input", { name: "partitions", placeholder: "partitions, as 0,3; empty: all", "aria-label": "partitions" });
  const state = choice("state", ["nearest", "clear", "keep"]);
  const next = (event) => {
    event.preventDefault();
    plan(job, "startpoint", { stream: stream.value, kind: kind.value, value: value.value, partitions: partitions.value, state: state.value });
  };
  show(element("h2", {}, `Where the next start of ${job} reads`), element("form", { onsubmit: next },
    element("label", {}, "stream", stream), element("label", {}, "from", kind), value, partitions,
    element("label", {}, "state", state), element("button", { id: "preview" }, "What would it do?"), cancel()));
}

function askForToken(then) {
  if (dialog.open && dialog.querySelector("[name=token]")) return;
  const token = element("input", { name: "token", type: "password", placeholder: "token", "aria-label": "token", autocomplete: "off" });
  const go = (event) => { event.preventDefault(); setToken(token.value); close(); then(); };
  show(element("h2", {}, "Token"), sentence("The dashboard printed it when it started, behind `#token=` in its address."),
    element("form", { onsubmit: go }, token, element("button", {}, "Go on"), cancel()));
  token.focus();
}

function follows() {
  open(new URLSearchParams(location.hash.slice(1)).get("job") ?? "");
}

setInterval(showAge, 1000);
window.addEventListener("hashchange", follows);
// Browsers open few connections to one server, and a page that nobody sees needs none.
document.addEventListener("visibilitychange", () => (document.hidden ? watching.abort() : follows()));
if (new URLSearchParams(location.hash.slice(1)).has("job")) follows();
else goHome();

function goHome() {
  get("/api/home").then(
    (found) => { if (found.job) location.replace(`#job=${encodeURIComponent(found.job)}`); else follows(); },
    (error) => (error.status === 401 ? askForToken(goHome) : follows()),
  );
}
