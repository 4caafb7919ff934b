// Table of rollouts: filters, and one page of rows. Filtering and sorting use all rows of the column store.

import { h, brief, signed, count } from "braid/dom.js";
import { data, opens } from "braid/source.js";
import { algorithm, choices, episodes, outcome, select, sort, state } from "braid/store.js";
import { go, note, params } from "braid/router.js";

const CHOICES = { env: (row) => episodes.env[row], algorithm, kind: (row) => episodes.kind[row], outcome };
const RANGES = { reward: "reward", version: "policy version", step: "step" };
let table = null;
let rows = [];

export function render(root) {
  const filter = read();
  const summary = h("p", { class: "count", role: "status" });
  const frame = h("div", { id: "table" });
  const bar = h("form", { class: "filters", onsubmit: (event) => event.preventDefault() });
  const refresh = () => {
    rows = select(filter);
    const absent = state.leftOut.episodes;
    const spread = absent ? `, which are ${absent.shown.toLocaleString("en")} of ${absent.of.toLocaleString("en")}, evenly spread` : "";
    summary.textContent = `${rows.length.toLocaleString("en")} of ${count(episodes.id.length, "rollout")}${spread}${tokensNote()}`;
    table?.setPage(Number(params().get("page") ?? 1)).catch(() => {});
  };
  const fill = () => bar.replaceChildren(...controls(filter, () => (write(filter), refresh())));
  fill();
  root.replaceChildren(bar, summary, frame);
  rows = select(filter);
  table = make(frame);
  table.on("tableBuilt", refresh);
  return () => {
    if (!bar.contains(document.activeElement)) fill();
    refresh();
  };
}

export function close() {
  table?.destroy();
  table = null;
}

// Previous and next rollout in the current filter and sort order.
export function neighbours(id) {
  const order = rows.length ? rows : select(read());
  const place = order.findIndex((row) => episodes.id[row] === id);
  const at = (number) => (place < 0 ? null : episodes.id[order[number]] ?? null);
  return { previous: at(place - 1), next: at(place + 1), place, total: order.length };
}

function tokensNote() {
  if (!data.opened) return "";
  const held = Object.keys(data.opened).length;
  if (held >= episodes.id.length) return "";
  return `; this page has the tokens of ${held.toLocaleString("en")} (marked ●), in whole groups spread over the run; braid watch opens every rollout`;
}

function read() {
  const found = { text: params().get("text") ?? "" };
  for (const name of Object.keys(CHOICES)) found[name] = params().get(name) ?? "";
  for (const name of Object.keys(RANGES)) {
    const bounds = (params().get(name) ?? "..").split("..").map((text) => (text === "" ? null : Number(text)));
    found[name] = bounds.every((bound) => bound === null) ? null : bounds;
  }
  return found;
}

function write(filter) {
  const ranges = Object.keys(RANGES).map((name) => [name, filter[name]?.map((bound) => bound ?? "").join("..")]);
  const chosen = Object.keys(CHOICES).map((name) => [name, filter[name]]);
  note({ ...Object.fromEntries([...chosen, ...ranges]), text: filter.text, page: null });
}

function controls(filter, changed) {
  const select = ([name, of]) =>
    h("label", {}, name, h("select", { name, onchange: (event) => ((filter[name] = event.target.value), changed()) },
      h("option", { value: "" }, "all"),
      choices(of).sort().map((value) => h("option", { value, selected: value === filter[name] }, value))));
  const bound = (name, side) =>
    h("input", { type: "number", step: "any", name: `${name}-${side ? "most" : "least"}`, placeholder: side ? "max" : "min",
      "aria-label": `${side ? "max" : "min"} ${RANGES[name]}`, value: filter[name]?.[side] ?? "",
      oninput: (event) => {
        const bounds = filter[name] ?? [null, null];
        bounds[side] = event.target.value === "" ? null : Number(event.target.value);
        filter[name] = bounds.every((each) => each === null) ? null : bounds;
        changed();
      } });
  const range = (name) => h("label", {}, RANGES[name], h("span", { class: "range" }, bound(name, 0), bound(name, 1)));
  const search = h("label", { class: "search" }, "search", h("input", { type: "search", name: "text", value: filter.text,
    placeholder: "id, task or answer  ( / )", oninput: (event) => ((filter.text = event.target.value), changed()) }));
  return [...Object.entries(CHOICES).map(select), ...Object.keys(RANGES).map(range), search];
}

function make(frame) {
  const made = new Tabulator(frame, {
    layout: "fitColumns",
    index: "id",
    pagination: true,
    paginationMode: "remote",
    paginationInitialPage: Number(params().get("page") ?? 1),
    paginationSize: 50,
    paginationSizeSelector: [25, 50, 100, 200],
    sortMode: "remote",
    headerSortTristate: true,
    placeholder: "no rollout matches the filters",
    ajaxURL: "rows",
    ajaxRequestFunc: (_url, _config, { page, size, sort: sorters }) => Promise.resolve(pageOf(page, size, sorters ?? [])),
    columns: COLUMNS,
    rowFormatter: (row) => row.getElement().setAttribute("tabindex", "0"),
  });
  made.on("rowClick", (_, row) => go({ rollout: row.getData().id }));
  made.on("pageLoaded", (page) => params().get("view") === "rollouts" && note({ page: page > 1 ? page : null }));
  frame.addEventListener("keydown", (event) => {
    const row = event.target.closest(".tabulator-row");
    if (!row || !["Enter", "ArrowDown", "ArrowUp"].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "Enter") row.click();
    else (event.key === "ArrowDown" ? row.nextElementSibling : row.previousElementSibling)?.focus();
  });
  return made;
}

function pageOf(page, size, sorters) {
  const [first] = sorters;
  rows = first ? sort(rows, first.field, first.dir === "desc") : rows.sort((a, b) => a - b);
  const shown = rows.slice((page - 1) * size, page * size).map((row) => ({
    open: opens(episodes.id[row]) ? "●" : "",
    algorithm: algorithm(row),
    ...Object.fromEntries(Object.keys(episodes).map((name) => [name, episodes[name][row]])),
    outcome: outcome(row),
  }));
  return { data: shown, last_page: Math.max(1, Math.ceil(rows.length / size)), last_row: rows.length };
}

const number = (cell) => brief(cell.getValue());
function reward(cell) {
  const value = cell.getValue();
  const share = value === null ? 0 : Math.max(0, Math.min(1, value));
  return h("span", { class: "bar", style: `--share:${100 * share}%` }, brief(value));
}
function advantage(cell) {
  const value = cell.getValue();
  return h("span", { class: value > 0 ? "up" : value < 0 ? "down" : "quiet" }, value === null ? "–" : signed(value));
}
const outcomeCell = (cell) => h("span", { class: `word ${cell.getValue()}` }, cell.getValue());
const versions = (cell) => {
  const { oldest, newest } = cell.getData();
  return newest === null ? "–" : oldest === newest ? `v${newest}` : `v${oldest}–v${newest}`;
};

const right = { hozAlign: "right", headerHozAlign: "right" };
const COLUMNS = [
  { title: "", field: "open", width: 28, headerSort: false, tooltip: () => "tokens are in this page" },
  { title: "step", field: "step", width: 64, ...right },
  { title: "env", field: "env", minWidth: 90 },
  { title: "algorithm", field: "algorithm", minWidth: 100 },
  { title: "reward", field: "reward", width: 92, formatter: reward, ...right },
  { title: "advantage", field: "advantage", width: 114, formatter: advantage, ...right },
  { title: "version", field: "newest", width: 88, formatter: versions, ...right },
  { title: "tokens", field: "tokens", width: 82, formatter: number, ...right },
  { title: "turns", field: "turns", width: 74, ...right },
  { title: "branches", field: "branches", width: 96, ...right },
  { title: "outcome", field: "outcome", width: 104, formatter: outcomeCell },
  { title: "task", field: "key", minWidth: 165 },
  { title: "last answer", field: "preview", minWidth: 160, widthGrow: 2, headerSort: false, cssClass: "answer" },
];
