// The live page: what has changed is fetched and put in its place; nothing here makes HTML of foreign text.
"use strict";
const body = document.body, session = body.dataset.session, root = document.documentElement;
const $ = (id) => document.getElementById(id);

// -- the token: in the part of the address that no browser sends, then in this tab alone
const TOKEN = "autoresearchd-token";
if (location.hash.startsWith("#token=")) {
  sessionStorage.setItem(TOKEN, location.hash.slice(7));
  history.replaceState(null, "", location.pathname + location.search);
}
addEventListener("hashchange", () => { if (location.hash.startsWith("#token=")) location.reload(); }); // into an open tab
const token = sessionStorage.getItem(TOKEN);
let mayAsk = false;
const headers = () => ({ "x-autoresearchd-token": token, "content-type": "application/json" });
function showAsks() {
  for (const block of document.querySelectorAll("[data-asks]")) block.hidden = !mayAsk;
}
async function checkToken() {
  if (!token) return;
  const answer = await fetch("/token", { headers: headers() }).catch(() => null);
  mayAsk = answer !== null && answer.status === 204;
  if (answer !== null && answer.status === 403) sessionStorage.removeItem(TOKEN);
  showAsks();
}
let said = 0;
function say(words) {
  const place = $("said");
  place.textContent = words;
  place.hidden = false;
  clearTimeout(said);
  said = setTimeout(() => { place.hidden = true; }, 8000);
}
async function ask(path, what) {
  try {
    const answer = await fetch(`/s/${encodeURIComponent(session)}/${path}`, { method: "POST", headers: headers(), body: JSON.stringify(what) });
    const told = await answer.json();
    say(told.done || told.error);
    return answer.ok;
  } catch (error) {
    say(`the page's server does not answer: ${error.message}`);
    return false;
  }
}
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.matches("[data-note]")) $("note").showModal();
  else if (button.matches("[data-close]")) button.closest("dialog").close();
  else if (button.id === "show-keys") $("keys").showModal();
  else if (button.dataset.ask === "stop") $("sure").showModal();
  else if (button.dataset.ask) await ask("ask", { kind: button.dataset.ask });
});
$("note-form")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (await ask("note", { text: $("note-text").value })) $("note-text").value = "";
  $("note").close();
});
$("sure")?.addEventListener("close", () => {
  if ($("sure").returnValue) ask("ask", { kind: $("sure").returnValue });
  $("sure").returnValue = "";
});

// -- blocks that are live: each is replaced where its HTML has changed
function put(fresh) {
  const focused = document.activeElement, key = focused && (focused.id || focused.getAttribute("href"));
  for (const next of fresh.querySelectorAll("[data-live]")) {
    const now = $(next.id);
    if (!now) continue;
    if (next.dataset.keys !== undefined && next.dataset.keys === now.dataset.keys) continue; // its parts follow
    now.classList.remove("fresh");
    if (now.matches("[data-asks]")) next.hidden = now.hidden;
    const copy = document.importNode(next, true);
    const open = [...now.querySelectorAll("details")].map((one) => one.open);
    copy.querySelectorAll("details").forEach((one, i) => { if (i < open.length) one.open = open[i]; });
    if (now.isEqualNode(copy)) continue;
    for (const place of copy.querySelectorAll("[data-curves]")) { // what is drawn goes on
      const drawn = [...now.querySelectorAll("[data-curves]")].find((one) => one.dataset.curves === place.dataset.curves);
      if (drawn) place.replaceWith(drawn);
    }
    const logs = [...now.querySelectorAll("pre.log")].map((log) => log.scrollTop + log.clientHeight < log.scrollHeight - 4 && log.scrollTop);
    now.replaceWith(copy);
    for (const place of plots.keys()) if (!place.isConnected) plots.delete(place);
    copy.querySelectorAll("pre.log").forEach((log, i) => { log.scrollTop = logs[i] || log.scrollHeight; });
    if (copy.id === "facts") copy.classList.add("fresh");
  }
  showAsks();
  if (key && document.activeElement === body) {
    const again = $(key) || document.querySelector(`a[href="${CSS.escape(key)}"]`);
    if (again) again.focus({ preventScroll: true });
  }
  body.dataset.version = fresh.body.dataset.version;
  if (fresh.body.dataset.stale !== undefined) later(); // charts of very many experiments follow a little later
  curves();
}
let soon = 0;
function later() {
  clearTimeout(soon);
  soon = setTimeout(refresh, 3000);
}
// Charts are drawn for the width that they are seen at: scaled down, nobody could read them.
const narrow = matchMedia("(max-width: 640px)");
function here() {
  const address = new URL(location.href);
  if (narrow.matches && document.querySelector("[data-sized]")) address.searchParams.set("narrow", "");
  return address;
}
narrow.addEventListener("change", () => refresh());
let busy = false, again = false, pause = 0, turn = 0; // turn: which table is asked for
async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  const begun = performance.now();
  try {
    const mine = turn, answer = await fetch(here(), { headers: { accept: "text/html" } });
    if (answer.status === 404 && session) location.reload(); // it was removed: the page that says so
    else if (!answer.ok) { linked("not readable"); later(); }
    else if (events?.readyState === EventSource.OPEN) linked("live");
    const text = answer.ok ? await answer.text() : "";
    if (text && mine === turn) put(new DOMParser().parseFromString(text, "text/html"));
  } catch { /* the connection is lost; the events tell when it is back */ }
  pause = Math.max(50, (performance.now() - begun) / 2); // a page that is slow to make is asked for less often
  setTimeout(() => { busy = false; if (again) { again = false; refresh(); } }, pause);
}
let events = null;
function linked(words) {
  $("link-state").textContent = words;
  $("link-state").classList.toggle("live", words === "live");
}
function listen() {
  if (events || document.hidden) return;
  events = new EventSource(`/events?session=${encodeURIComponent(session)}`);
  events.addEventListener("open", () => linked("live"));
  events.addEventListener("error", () => {
    linked("not connected");
    if (events?.readyState === EventSource.CLOSED) { events = null; setTimeout(listen, 5000); } // it was refused: too many watch
  });
  events.addEventListener("change", (event) => { if (event.data !== body.dataset.version) refresh(); });
  events.addEventListener("curve", () => curves());
}
// A browser has few connections to one address: a page that nobody sees gives its own back.
document.addEventListener("visibilitychange", () => {
  if (document.hidden && events) { events.close(); events = null; } else listen();
});

// -- the table: filters, columns and pages without loading the whole page
let wait = 0;
async function go(address) {
  clearTimeout(wait);
  const mine = ++turn, answer = await fetch(address, { headers: { accept: "text/html" } });
  if (!answer.ok) { location.assign(address); return; }
  const text = await answer.text();
  if (mine !== turn) return;
  history.pushState(null, "", address);
  shown = location.pathname + location.search;
  put(new DOMParser().parseFromString(text, "text/html"));
}
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-nav]");
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(link.href);
});
const filters = $("filters");
if (filters) {
  const send = () => {
    const wanted = new URLSearchParams([...new FormData(filters)].filter(([name, value]) => value && name !== "sort"));
    const sort = new URL(location.href).searchParams.get("sort");
    if (sort) wanted.set("sort", sort);
    go(`${filters.action}?${wanted}`);
  };
  filters.addEventListener("submit", (event) => { event.preventDefault(); send(); });
  filters.addEventListener("change", (event) => { if (event.target.tagName === "SELECT") send(); });
  filters.addEventListener("input", (event) => { if (event.target.type === "search") { clearTimeout(wait); wait = setTimeout(send, 250); } });
}
let shown = location.pathname + location.search;
addEventListener("popstate", () => { if (location.pathname + location.search !== shown) location.reload(); }); // not for #main

// -- learning curves (uPlot)
const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
const plots = new Map();
function axes() {
  const look = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 0.5 }, ticks: { stroke: colour("line"), width: 0.5 }, font: "11px Inter, sans-serif" };
  return [{ ...look, size: 28, values: (_, ticks) => ticks.map((t) => `${t}%`) }, { ...look, size: 58 }];
}
function panel(title, place) {
  const box = document.createElement("div"), head = document.createElement("p"), name = document.createElement("span");
  const whole = document.createElement("button"), drawn = document.createElement("div");
  box.className = "panel";
  head.className = "panel-title";
  name.textContent = title;
  whole.type = "button";
  whole.textContent = "Whole";
  whole.title = "Drag over the chart to look closer; this shows all of it again";
  whole.hidden = true;
  drawn.setAttribute("role", "img");
  head.append(name, whole);
  box.append(head, drawn);
  place.append(box);
  return { box, drawn, whole };
}
// Where no pointer is, the legend tells of the newest point.
function newest(chart) {
  if (chart.cursor.idx == null) chart.setLegend({ idx: chart.data[0].length - 1 }, false);
}
function plot(place, title, panels, series, data, extra) {
  const known = plots.get(place) || new Map();
  plots.set(place, known);
  const names = series.map((one) => one.label).join("\n"), old = known.get(title);
  const width = Math.max(240, panels > 1 && place.clientWidth > 700 ? (place.clientWidth - 24) / 2 : place.clientWidth);
  if (old && old.names === names) {
    if (old.chart.width !== width) old.chart.setSize({ width, height: 190 });
    old.chart.setData(data, !old.zoomed);
    if (old.zoomed) old.chart.redraw();
    return old;
  }
  old?.box.remove();
  const made = { ...panel(title, place.firstElementChild), names, zoomed: false };
  made.chart = new uPlot({
    width, height: 190, series: [{ label: "at", value: (_, v) => (v == null ? "—" : `${v.toFixed(1)}%`) }, ...series], axes: axes(),
    scales: { x: { time: false, range: (u, low, high) => (made.zoomed ? [low, high] : [0, 100]) } },
    cursor: { drag: { x: true, y: false }, points: { size: 6 } }, padding: [6, 18, 0, 0],
    hooks: { setLegend: [newest], setData: [newest], setSelect: [() => { made.zoomed = true; made.whole.hidden = false; }] }, ...extra,
  }, data, made.drawn);
  made.whole.addEventListener("click", () => { made.zoomed = false; made.whole.hidden = true; made.chart.setData(made.chart.data); });
  known.set(title, made);
  return made;
}
const PALETTE = ["tip", "ok", "fail", "illegal", "abort", "soft"];
const short = (value) => (value == null ? "—" : Number(value).toPrecision(5));
function draw(place, runs) {
  if (!place.firstElementChild) {
    const panels = document.createElement("div"), says = document.createElement("p");
    panels.className = "panels";
    says.className = "soft small says";
    place.append(panels, says);
  }
  const there = runs.filter((run) => run.x.length > 0), seen = runs.find((run) => run.looks && run.looks.length);
  if (there.length) {
    const data = uPlot.join(there.map((run) => [run.x, run.y]));
    const series = there.map((run, i) => ({
      label: run.name, stroke: colour(PALETTE[i % PALETTE.length]), width: 1.6, spanGaps: true, points: { show: run.x.length < 12 },
      dash: run.name.startsWith("parent") ? [5, 4] : undefined, value: (_, v) => short(v),
    }));
    const made = plot(place, "Loss by share of the budget", seen ? 2 : 1, series, data);
    const last = there.map((run) => `${run.name} at ${short(run.y[run.y.length - 1])} after ${run.x[run.x.length - 1]}%`);
    made.drawn.setAttribute("aria-label", `Loss: ${last.join("; ")}`);
  }
  if (seen) {
    const column = (i, scale = 1) => seen.looks.map((look) => (look[i] == null ? null : look[i] * scale));
    const line = { width: 1, stroke: colour("tip"), points: { show: false }, value: (_, v) => short(v) };
    const made = plot(place, "Forecast of the final value, 90% band, and the bar it has to reach", there.length ? 2 : 1, [
      { ...line, label: "forecast", width: 2, points: { show: true, size: 5 } }, { ...line, label: "90% from", width: 0.5 }, { ...line, label: "to", width: 0.5 },
      { ...line, label: "bar", stroke: colour("fail"), dash: [6, 4], width: 1.5 },
    ], [column(0, 100), column(1), column(2), column(3), column(4)], { bands: [{ series: [3, 2], fill: `${colour("tip")}2b` }] });
    const now = seen.looks[seen.looks.length - 1];
    made.drawn.setAttribute("aria-label", `Forecast ${short(now[1])}, 90% from ${short(now[2])} to ${short(now[3])}, bar ${short(now[4])}`);
  }
  place.lastElementChild.textContent = runs.map((run) => run.says || "").filter(Boolean).join(" ") || (there.length ? "" : "No curve in its log yet.");
  place.dataset.drawn = String(there.reduce((sum, run) => sum + run.x.length, 0));
}
const asked = new Map();
function curves() {
  for (const place of document.querySelectorAll("[data-curves]")) {
    const live = place.dataset.curves.includes("/live");
    if (place.closest("[hidden]") || (place.dataset.drawn !== undefined && !live)) continue;
    if (asked.has(place)) { asked.set(place, true); continue; }
    asked.set(place, false);
    fetch(place.dataset.curves).then((answer) => (answer.ok ? answer.json() : [])).then((runs) => draw(place, runs))
      .catch(() => {}).finally(() => setTimeout(() => {
        const more = asked.get(place);
        asked.delete(place);
        if (more) curves();
      }, 400));
  }
}
function redraw() {
  for (const [place, known] of plots) { for (const made of known.values()) { made.chart.destroy(); made.box.remove(); } plots.delete(place); delete place.dataset.drawn; }
  curves();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let resized = 0;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(redraw, 200); });

// -- time goes on between events
setInterval(() => {
  for (const place of document.querySelectorAll("[data-elapsed]")) {
    const budget = Number(place.dataset.budget), meter = place.parentElement.querySelector("progress");
    place.dataset.begun ||= String(performance.now() / 1000 - Number(place.dataset.elapsed));
    const elapsed = performance.now() / 1000 - Number(place.dataset.begun);
    if (meter && budget) meter.value = Math.min(elapsed, budget);
    place.textContent = duration(elapsed) + (budget ? ` of ${duration(budget)}` : "");
  }
}, 1000);
function duration(seconds) {
  const total = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  if (total < 60) return `${total}s`;
  if (total < 3600) return `${Math.floor(total / 60)}m ${two(total % 60)}s`;
  return `${Math.floor(total / 3600)}h ${two(Math.floor((total % 3600) / 60))}m`;
}

// -- shortcuts; single keys can be turned off (WCAG 2.1.4)
const KEYS = "autoresearchd-keys";
$("keys-on").checked = localStorage.getItem(KEYS) !== "off";
$("keys-on").addEventListener("change", (event) => localStorage.setItem(KEYS, event.target.checked ? "on" : "off"));
addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey || !$("keys-on").checked || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, textarea, select")) return;
  const follow = (link) => { if (link) link.click(); return link; };
  const tabs = document.querySelectorAll(".tabs a"), number = Number(event.key);
  let done = true;
  if (number >= 1 && number <= tabs.length) tabs[number - 1].click();
  else if (event.key === "/" && $("f-text")) $("f-text").focus();
  else if (event.key === "/" && tabs.length) tabs[1].click();
  else if (event.key === "[") done = follow(document.querySelector("main a[rel=prev]"));
  else if (event.key === "]") done = follow(document.querySelector("main a[rel=next]"));
  else if (event.key === "n" && mayAsk && $("note")) $("note").showModal();
  else if (event.key === "s") location.assign("/");
  else if (event.key === "?") $("keys").showModal();
  else done = false;
  if (done) event.preventDefault();
});
checkToken();
listen();
curves();
if (body.dataset.stale !== undefined) later();
if (narrow.matches && document.querySelector("[data-sized]")) refresh();
for (const log of document.querySelectorAll("pre.log")) log.scrollTop = log.scrollHeight;
body.dataset.ready = "yes";
