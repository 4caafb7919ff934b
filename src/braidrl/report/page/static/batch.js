// Micro batch view: the samples of one forward, token by token, coloured by loss component.

import { h, count } from "braid/dom.js";
import { opens, rollout as load } from "braid/source.js";
import { algorithm, episodes, microBatches, row as rowOf, samples } from "braid/store.js";
import { go, link, note } from "braid/router.js";
import { painter } from "braid/painter.js";
import { tokenElement, tokensOf } from "braid/tokens.js";
import { hide, listen } from "braid/tip.js";

const AT_ONCE = 64;
export const keys = { streams: [] };

export async function render(root, name) {
  const all = microBatches();
  const chosen = all.find((each) => each.name === name) ?? all[0];
  if (!chosen) {
    root.replaceChildren(h("p", { class: "note" },
      "No micro batches: the trainer of this run recorded no tokens (trainer.recorded_tokens = 0, an older Braid, or no step yet)."));
    return;
  }
  const rows = interleaved(chosen.rows).filter((row) => opens(samples.episode[row]));
  let shown = await open(rows.slice(0, AT_ONCE));
  const more = async () => {
    shown = await open(rows);
    draw();
  };
  const draw = () => {
    hide();
    const paint = painter(shown.flatMap((each) => each.tokens), draw, "component");
    keys.streams = paint.keys;
    const list = h("div", { class: "samples" }, shown.map((each) => sampleElement(each, paint.scale)));
    listen(list, (token) => note({ token: `${token.rollout}.${token.position}` }));
    root.replaceChildren(chooser(all, chosen), totals(chosen), remainder(chosen, shown.length, rows.length, more), paint.element, list);
  };
  draw();
}

// Samples interleaved by source, so that the first ones represent the whole batch.
function interleaved(rows) {
  const piles = new Map();
  const turn = (row) => {
    const env = episodes.env[rowOf(samples.episode[row])];
    piles.set(env, (piles.get(env) ?? 0) + 1);
    return piles.get(env);
  };
  return rows.map((row) => [turn(row), row]).sort((a, b) => a[0] - b[0]).map(([, row]) => row);
}

async function open(rows) {
  const found = [];
  for (const row of rows) {
    const rollout = await load(samples.episode[row]);
    const trace = rollout.traces.find((each) => each.id.startsWith(samples.trace[row]));
    found.push({ row, rollout, trace, tokens: tokensOf(rollout, trace, samples.branch[row]) });
  }
  return found;
}

function chooser(all, chosen) {
  const place = all.indexOf(chosen);
  const to = (other, text, key) => h("a", { class: "button", href: other && link({ batch: other.name }), "aria-disabled": String(!other), "data-go": key, title: `key ${key}` }, text);
  return h("nav", { class: "steps" },
    h("select", { "aria-label": "micro batch", onchange: (event) => go({ batch: event.target.value }) },
      all.map((each) => h("option", { value: each.name, selected: each === chosen }, title(each)))),
    to(all[place + 1], "← earlier", "k"), to(all[place - 1], "later →", "j"));
}

function title({ name }) {
  const [step, mini, micro] = name.split(".");
  return `step ${step}, mini batch ${mini}, micro batch ${micro}`;
}

// Note on samples that are not drawn, with a button to draw more.
function remainder(chosen, drawn, here, more) {
  const absent = chosen.rows.length - here;
  const text = absent ? `${count(absent, "sample")} ${absent === 1 ? "is" : "are"} not in this page; braid watch shows all samples.` : "";
  const button = here > drawn ? h("button", { type: "button", onclick: more }, `show all ${here} samples instead of ${drawn}`) : null;
  return h("p", {}, button, h("small", {}, text));
}

function totals(chosen) {
  const sum = (name) => chosen.rows.reduce((total, row) => total + samples[name][row], 0);
  const parts = ["rl", "ce", "ref_kl"].map((name) => h("span", { class: "key", "data-component": name }, h("i", { class: `t c-${name}` }, "ab"), ` ${name} `, h("b", {}, sum(name).toLocaleString("en"))));
  return h("div", { class: "heading" }, h("h1", {}, title(chosen)),
    h("p", { class: "totals" }, h("span", {}, count(chosen.rows.length, "recorded sample")), h("span", {}, count(sum("tokens"), "token")), ...parts));
}

function sampleElement({ row, rollout, tokens }, scale) {
  return h("article", { class: "sample", "data-env": rollout.env },
    h("header", {}, h("a", { href: link({ rollout: rollout.id }) }, rollout.env),
      h("small", {}, `${rowOf(rollout.id) === undefined ? "" : algorithm(rowOf(rollout.id))} · ${rollout.key} · ${samples.tokens[row]} tokens`)),
    h("div", { class: "body" }, tokens.map((token) => tokenElement(token, scale))));
}
