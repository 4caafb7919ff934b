// Entry point: header, the view selected by the URL, keyboard shortcuts, and polling for updates.

import { h } from "braid/dom.js";
import * as batch from "braid/batch.js";
import * as config from "braid/config.js";
import * as charts from "braid/charts.js";
import * as overview from "braid/overview.js";
import * as rollout from "braid/rollout.js";
import * as table from "braid/table.js";
import * as theme from "braid/theme.js";
import { hide } from "braid/tip.js";
import { changes, data, live } from "braid/source.js";
import { apply, metrics, state } from "braid/store.js";
import { go, link, params } from "braid/router.js";

const POLL = 1000;
const main = document.getElementById("main");
const status = h("span", { class: "live", role: "status" });
const TABS = [
  ["overview", "Overview", { view: "overview" }],
  ["rollouts", "Rollouts", { view: "rollouts" }],
  ["batch", "Micro batches", { batch: "last" }],
  ["config", "Config", { view: "config" }],
];
let refresh = null;
let drawing = 0;

const current = () => (params().has("rollout") ? "rollout" : params().has("batch") ? "batch" : params().get("view") ?? "overview");

async function draw() {
  const turn = ++drawing;
  hide();
  charts.close();
  table.close();
  refresh = null;
  header();
  const view = current();
  main.className = `view-${view}`;
  const root = h("div", { class: "view" });
  delete document.body.dataset.ready;
  main.replaceChildren(root);
  scrollTo(0, 0);
  if (view === "rollout") await rollout.render(root, params().get("rollout"));
  else if (view === "batch") await batch.render(root, params().get("batch"));
  else if (view === "rollouts") refresh = table.render(root);
  else if (view === "config") config.render(root);
  else refresh = overview.render(root);
  if (turn !== drawing) return;
  document.title = `${view} · ${data.facts.name} · Braid`;
  document.body.dataset.ready = view;
}

function header() {
  const view = current() === "rollout" ? "rollouts" : current();
  document.getElementById("top").replaceChildren(
    h("a", { class: "brand", href: link({ view: "overview" }) }, h("b", {}, "Braid"), h("span", {}, data.facts.name)),
    h("nav", { "aria-label": "views" }, TABS.map(([name, text, to]) => h("a", { href: link(to), "aria-current": name === view ? "page" : null }, text))),
    status,
    h("button", { type: "button", id: "theme", title: "light or dark (t)", "aria-label": "light or dark", onclick: theme.toggle }, "◐"),
    h("button", { type: "button", title: "keys (?)", "aria-label": "keys", onclick: help }, "?"));
}

function showStatus() {
  const steps = metrics.trainer.step;
  const done = steps?.length ? steps[steps.length - 1] : 0;
  const of = data.facts.max_steps ? ` of ${data.facts.max_steps}` : "";
  status.textContent = live ? `live · step ${done}${of}` : `step ${done}${of}`;
  status.classList.toggle("on", live);
}

const KEYS = [
  ["/", "search"],
  ["Esc", "back"],
  ["j k", "next, previous rollout or micro batch"],
  ["1 … 9", "colour tokens by another stream"],
  ["← → ↑ ↓", "move between tokens or rows"],
  ["Enter", "open a row"],
  ["t", "light or dark"],
  ["g o, g r, g b, g c", "overview, rollouts, micro batches, config"],
  ["?", "this list"],
];

function help() {
  const dialog = document.getElementById("help");
  dialog.replaceChildren(h("h2", {}, "Keys"), h("dl", {}, KEYS.flatMap(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
    h("form", { method: "dialog" }, h("button", {}, "Close")));
  dialog.showModal();
}

let prefix = "";
function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const view = current();
  const after = prefix;
  prefix = event.key === "g" ? "g" : "";
  const to = after === "g" && { o: TABS[0], r: TABS[1], b: TABS[2], c: TABS[3] }[event.key];
  if (to) return go(to[2]);
  if (event.key === "/") {
    const field = main.querySelector("input[type=search]");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  } else if (event.key === "?") help();
  else if (event.key === "t") theme.toggle();
  else if (event.key === "Escape" && view === "rollout") go({ view: "rollouts" });
  else if (event.key === "j" || event.key === "k") main.querySelector(`[data-go="${event.key}"][href]`)?.click();
  else if (/^[1-9]$/.test(event.key) && (view === "rollout" || view === "batch")) {
    (view === "rollout" ? rollout : batch).keys.streams[Number(event.key) - 1]?.();
  }
}

// Requests new rows, again immediately while there are more.
async function poll() {
  try {
    const before = JSON.stringify(state.cursor);
    const increment = await changes(state.cursor);
    if (increment.restarted) return location.reload();
    if (JSON.stringify(increment.cursor) !== before) {
      apply(increment);
      showStatus();
      refresh?.();
    }
    status.classList.remove("lost");
    if (live) setTimeout(poll, increment.more ? 0 : POLL);
  } catch (error) {
    status.textContent = `no response from braid watch: ${error.message}`;
    status.classList.add("lost");
    if (live) setTimeout(poll, 5 * POLL);
  }
}

theme.start();
theme.onTheme(charts.redraw);
addEventListener("hashchange", draw);
addEventListener("keydown", pressed);
await poll();
showStatus();
await draw();
