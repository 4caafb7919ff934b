// Column-wise store of the rows loaded so far, and queries on them.

import { data } from "braid/source.js";

export const metrics = { trainer: {}, orchestrator: {}, eval: {} };
export const episodes = { id: [] };
export const samples = { episode: [] };
const fates = new Map();
export const state = { cursor: [0, 0, 0, 0, 0, 0], leftOut: {} };

const rowOf = new Map();
const groups = new Map();

export function apply(increment) {
  for (const [file, columns] of Object.entries(increment.metrics)) extend(metrics[file], columns, "step");
  const before = episodes.id.length;
  extend(episodes, increment.episodes, "id");
  for (let row = before; row < episodes.id.length; row++) {
    rowOf.set(episodes.id[row], row);
    const group = groupOf(row);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(row);
  }
  extend(samples, increment.samples, "episode");
  for (const [key, fate] of Object.entries(increment.fates)) fates.set(key, fate);
  state.cursor = increment.cursor;
  state.leftOut = increment.left_out ?? {};
}

// Appends columns. A column that exists on one side only is filled with null on the other. `key` exists in every row.
function extend(known, added, key) {
  const before = known[key]?.length ?? 0;
  const more = added[key]?.length ?? 0;
  if (!more) return;
  for (const name of new Set([...Object.keys(known), ...Object.keys(added)])) {
    known[name] ??= Array(before).fill(null);
    const values = added[name] ?? Array(more).fill(null);
    for (const value of values) known[name].push(value);
  }
}

export const row = (id) => rowOf.get(id);
export const algorithm = (row) =>
  episodes.kind[row] === "eval" ? "evaluation" : data.facts.algorithms[episodes.env[row]] ?? "";
export const fate = (row) => fates.get(episodes.key[row]) ?? null;
const groupOf = (row) =>
  `${episodes.kind[row]} ${episodes.kind[row] === "eval" ? episodes.step[row] : ""} ${episodes.key[row].replace(/\/\d+$/, "")}`;
// Rows of the same group.
export const siblings = (row) => groups.get(groupOf(row)) ?? [];

// Distinct values for a filter, most frequent first.
export function choices(of) {
  const counts = new Map();
  for (let row = 0; row < episodes.id.length; row++) {
    const value = of(row);
    if (value !== "" && value !== null) counts.set(value, (counts.get(value) ?? 0) + 1);
  }
  return [...counts].sort((a, b) => b[1] - a[1]).map(([value]) => value);
}

// Row numbers that pass a filter: { env, algorithm, outcome, kind: text; reward, version, step: [least, most]; text }.
export function select(filter) {
  const text = (filter.text ?? "").toLowerCase();
  const within = (value, [least, most]) =>
    value !== null && (least === null || value >= least) && (most === null || value <= most);
  const found = [];
  for (let row = 0; row < episodes.id.length; row++) {
    if (filter.env && episodes.env[row] !== filter.env) continue;
    if (filter.algorithm && algorithm(row) !== filter.algorithm) continue;
    if (filter.kind && episodes.kind[row] !== filter.kind) continue;
    if (filter.outcome && outcome(row) !== filter.outcome) continue;
    if (filter.reward && !within(episodes.reward[row], filter.reward)) continue;
    if (filter.step && !within(episodes.step[row], filter.step)) continue;
    if (filter.version && !within(episodes.newest[row], filter.version)) continue;
    if (text && !`${episodes.id[row]} ${episodes.key[row]} ${episodes.preview[row]}`.toLowerCase().includes(text)) continue;
    found.push(row);
  }
  return found;
}

// Outcome of an episode: error, outcome of its group if it is decided, or its own.
export function outcome(row) {
  if (episodes.state[row] === "error") return "error";
  return fate(row) ?? episodes.outcome[row];
}

export function sort(rows, field, descending) {
  const value = { algorithm, outcome }[field] ?? ((row) => episodes[field][row]);
  const sign = descending ? -1 : 1;
  const empty = (x) => x === null || x === "";
  return rows.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (empty(x) || empty(y)) return empty(x) - empty(y) || a - b;
    return (x < y ? -sign : x > y ? sign : 0) || a - b;
  });
}

// Trained micro batches: [{ name: "STEP.MINI.MICRO", step, rows of `samples` }], newest step first.
export function microBatches() {
  const found = new Map();
  for (let row = 0; row < samples.episode.length; row++) {
    if (samples.micro_batch[row] === null) continue;
    const name = `${samples.step[row]}.${samples.mini_batch[row]}.${samples.micro_batch[row]}`;
    if (!found.has(name)) found.set(name, { name, step: samples.step[row], rows: [] });
    found.get(name).rows.push(row);
  }
  return [...found.values()].sort((a, b) => b.step - a.step || a.name.localeCompare(b.name, "en", { numeric: true }));
}
