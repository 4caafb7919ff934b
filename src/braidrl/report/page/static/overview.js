// Overview: a few numbers, then the curves of the run.

import { h, brief, signed, count } from "braid/dom.js";
import { chart, close } from "braid/charts.js";
import { data } from "braid/source.js";
import { metrics, episodes, state } from "braid/store.js";
import { link } from "braid/router.js";

const plain = (file, ...names) => names.map((name) => [name, file, name]);
const matching = (file, pattern) =>
  Object.keys(metrics[file]).flatMap((name) => {
    const found = name.match(pattern);
    return found ? [[found[1], file, name]] : [];
  });

// Title, hint, series [label, file, name], options
const SECTIONS = () => [
  ["Reward", [
    ["Reward", "mean of the episodes of a batch", [...plain("orchestrator", "reward/mean"), ...matching("orchestrator", /^reward\/(.+)\/mean$/)]],
    ["Held-out reward", "by policy version", matching("eval", /^eval\/(.+)\/reward\/mean$/), { points: true }],
    ["pass@k", "held-out tasks", matching("eval", /^eval\/(.+\/pass@\d+)$/), { points: true }],
    ["Environment metrics", "mean per batch", matching("orchestrator", /^metric\/(.+)$/)],
  ]],
  ["Loss", [
    ["Loss by component", "each over its own token count", plain("trainer", "loss/rl", "loss/ce", "loss/ref_kl")],
    ["Tokens by component", "loss tokens per step", plain("trainer", "tokens/rl", "tokens/ce", "tokens/ref_kl")],
    ["Distances", "nll of ce, reverse KL of ref_kl", plain("trainer", "nll", "ref_kl", "reference_kl")],
    ["Gradient", "norm before clipping", plain("trainer", "grad_norm")],
  ]],
  ["Off-policy", [
    ["Mismatch KL", "sampler to trainer, log scale", plain("trainer", "mismatch_kl", "unmasked_mismatch_kl", "masked_mismatch_kl", "is_approx_k3_kl"), { log: true }],
    ["Staleness", "versions behind", plain("trainer", "staleness/mean", "staleness/max")],
    ["Rejected tokens", "share of rl tokens", plain("trainer", "is_masked", "is_masked_low", "is_masked_high", "clip_ratio", "dual_clip_ratio", "is_clip_ratio", "m2po_clip_ratio", "opsm_clipfrac")],
    ["Entropy", "nats per loss token", plain("trainer", "entropy", "entropy/rl")],
  ]],
  ["Data", [
    ["Groups without signal", "share", plain("orchestrator", "zero_signal")],
    ["Truncated", "share of traces", plain("orchestrator", "truncated")],
    ["Sampled tokens", "mean per episode", plain("orchestrator", "tokens/mean", "turns/mean")],
    ["In flight and buffered", "episodes, traces", plain("orchestrator", "queue/in_flight", "queue/buffered")],
  ]],
  ["Time", [
    ["Trainer speed", "tokens per second", plain("trainer", "tokens_per_second")],
    ["Trainer", "seconds per step", plain("trainer", "time/step", "time/wait", "time/publish")],
    ["Orchestrator", "seconds per step", plain("orchestrator", "seconds/step", "seconds/policy_wait", "policy/update_seconds")],
  ]],
];

export function render(root) {
  const chosen = new Set();
  const draw = () => {
    close();
    root.replaceChildren(...[tiles(), notes(), ...sections(), explorer(chosen)].filter(Boolean));
  };
  draw();
  return () => document.activeElement?.matches("main input") || draw();
}

function tiles() {
  const last = (file, name) => {
    const values = (metrics[file][name] ?? []).filter((value) => value !== null);
    return values.length ? [values[values.length - 1], values[0], values.length] : [null, null, 0];
  };
  const tile = (label, value, extra = "", href = null) =>
    h(href ? "a" : "div", { class: "tile", href }, h("span", {}, label), h("b", {}, value), h("small", {}, extra));
  const change = (file, name) => {
    const [now, first, number] = last(file, name);
    return number > 1 ? `${signed(now - first)} so far` : "";
  };
  const steps = metrics.trainer.step?.length ?? 0;
  const done = steps ? metrics.trainer.step[steps - 1] : 0;
  const held = Object.keys(metrics.eval).filter((name) => name.endsWith("/reward/mean"));
  const shown = [
    tile("steps", brief(done), data.facts.max_steps ? `of ${data.facts.max_steps}` : ""),
    tile("reward", brief(last("orchestrator", "reward/mean")[0]), change("orchestrator", "reward/mean")),
    ...held.map((name) => tile(`eval ${name.slice(5, -12)}`, brief(last("eval", name)[0]), change("eval", name))),
    tile("mismatch KL", brief(last("trainer", "mismatch_kl")[0], 2), `${brief(100 * (last("trainer", "is_masked")[0] ?? 0))}% rejected`),
    tile("staleness", brief(last("trainer", "staleness/mean")[0]), `max ${brief(last("trainer", "staleness/max")[0])}`),
    tile("no signal", `${brief(100 * (last("orchestrator", "zero_signal")[0] ?? 0), 2)}%`, "of groups"),
    tile("rollouts", brief(episodes.id.length), "open the table", link({ view: "rollouts" })),
  ];
  return h("div", { class: "tiles" }, shown);
}

// Note on rows that were left out of the page.
function notes() {
  const found = Object.entries(state.leftOut).map(
    ([name, { shown, of }]) => `${shown.toLocaleString("en")} of ${count(of, "line")} of ${name}, evenly spread`,
  );
  if (!found.length) return null;
  return h("p", { class: "note", id: "left-out" }, `This run is too large for one page. Shown: ${found.join("; ")}. braid watch shows everything.`);
}

const series = (all) =>
  all
    .filter(([, file, name]) => metrics[file][name]?.some((value) => value !== null))
    .map(([label, file, name]) => ({ label, colour: colourOf(label), x: metrics[file].step, y: metrics[file][name] }));

// Sources and components have the same colour in all charts; null: use the next free colour.
function colourOf(label) {
  if (label === "reward/mean") return "text";
  const component = { rl: "s0", ce: "s1", ref_kl: "s3" }[label.split("/").pop()];
  if (component) return component;
  const place = Object.keys(data.facts.algorithms).sort().indexOf(label.split("/")[0]);
  return place < 0 ? null : `s${place % 8}`;
}

function sections() {
  return SECTIONS().flatMap(([title, charts]) => {
    const drawn = charts
      .map(([name, hint, wanted, options]) => [name, hint, series(wanted), options])
      .filter(([, , found]) => found.length)
      .map(([name, hint, found, options]) => chart(name, hint, found, options));
    return drawn.length ? [h("h2", {}, title), h("div", { class: "charts" }, drawn)] : [];
  });
}

function explorer(chosen) {
  const all = Object.entries(metrics).flatMap(([file, columns]) =>
    Object.keys(columns).filter((name) => name !== "step").map((name) => [name, file, name]));
  const grid = h("div", { class: "charts" });
  const add = (each) => grid.prepend(chart(each[2], `${each[1]}.jsonl`, series([each])));
  const names = h("div", { class: "chips" });
  const search = h("input", { type: "search", placeholder: `any of ${count(all.length, "metric")}`, "aria-label": "search metrics", oninput: list });
  function list() {
    const wanted = search.value.toLowerCase();
    const found = wanted ? all.filter(([name]) => name.toLowerCase().includes(wanted)).slice(0, 40) : [];
    names.replaceChildren(...found.map((each) => h("button", { type: "button", onclick: () => (chosen.add(each), add(each)) }, each[2])));
  }
  for (const each of chosen) add(each);
  return h("section", {}, h("h2", {}, "All metrics"), search, names, grid);
}
