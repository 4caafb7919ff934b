// Rollout view: facts, siblings, and the conversation with every token, branches side by side.

import { h, brief, signed } from "braid/dom.js";
import { rollout as load } from "braid/source.js";
import { algorithm, episodes, row as rowOf, siblings } from "braid/store.js";
import { link, note, params } from "braid/router.js";
import { painter } from "braid/painter.js";
import { messages, tokensOf } from "braid/tokens.js";
import { neighbours } from "braid/table.js";
import { hide, listen, show } from "braid/tip.js";

export const keys = { streams: [] };

export async function render(root, id) {
  const row = rowOf(id);
  const found = await load(id);
  if (!found) {
    root.replaceChildren(navigation(id), h("p", { class: "note" }, row === undefined
      ? `There is no rollout ${id} in this run.`
      : `The tokens of rollout ${id} are not in this page, to limit its size. braid watch opens every rollout; braid report --max-mib N includes more.`));
    return;
  }
  const draw = () => {
    hide();
    const shown = found.traces.map((trace) => ({ trace, tokens: branchTokens(found, trace) }));
    const paint = painter(shown.flatMap((each) => each.tokens.flat()), draw);
    keys.streams = paint.keys;
    const traces = shown.map(({ trace, tokens }) => traceElement(trace, tokens, paint.scale, found.traces.length > 1));
    const conversation = h("div", { class: "conversation" }, traces);
    listen(conversation, (token) => note({ token: `${found.traces.indexOf(token.trace)}.${token.branch}.${token.position}` }));
    root.replaceChildren(navigation(id), heading(found, row), errors(found), relatives(row), paint.element, conversation, task(found));
    reveal(conversation, found);
  };
  draw();
}

function branchTokens(found, trace) {
  const seen = new Set();
  return trace.branches.map((branch, number) => {
    const before = new Set(seen);
    branch.nodes.forEach((node) => seen.add(node));
    return tokensOf(found, trace, number, (node) => before.has(node));
  });
}

// The common prefix of all branches is shown once at the top, the rest of each branch in its own column.
function traceElement(trace, tokens, scale, several) {
  const paths = trace.branches.map((branch) => branch.nodes);
  let common = 0;
  while (paths.length > 1 && paths.every((path) => path.length > common && path[common] === paths[0][common])) common++;
  const title = several ? [h("h3", {}, trace.agent, h("small", {}, ` reward ${brief(trace.reward)}${trace.trainable ? "" : " · not trained"}`))] : [];
  if (paths.length <= 1) return h("section", { class: "trace" }, title, messages(trace, tokens[0] ?? [], paths[0] ?? [], scale));
  const trunk = messages(trace, tokens[0], paths[0].slice(0, common), scale);
  const columns = paths.map((path, number) =>
    h("div", { class: "branch", "data-branch": number },
      h("h4", {}, `branch ${number}`, h("small", {}, sampleNote(trace.branches[number]))),
      messages(trace, tokens[number], path.slice(common), scale)));
  return h("section", { class: "trace" }, title,
    trunk.length ? [h("h4", {}, `common part of ${paths.length} branches`), ...trunk] : [],
    h("div", { class: "branches" }, columns));
}

function sampleNote({ sample }) {
  if (!sample) return " in no batch";
  const entries = sample.positions ? ` · ${sample.positions.length} loss tokens` : "";
  return ` step ${sample.step}${entries}`;
}

function navigation(id) {
  const { previous, next, place, total } = neighbours(id);
  const kept = { color: params().get("color") };
  const to = (other, text, key) =>
    h("a", { class: "button", href: other && link({ rollout: other, ...kept }), "aria-disabled": String(!other), "data-go": key, title: `key ${key}` }, text);
  return h("nav", { class: "steps" }, h("a", { class: "button", href: link({ view: "rollouts" }), title: "Esc" }, "All rollouts"),
    to(previous, "← previous", "k"), to(next, "next →", "j"), place >= 0 ? h("small", {}, `${(place + 1).toLocaleString("en")} of ${total.toLocaleString("en")}`) : null);
}

function heading(found, row) {
  const facts = [
    ["environment", found.env],
    ["algorithm", row === undefined ? "" : algorithm(row)],
    ["reward", found.traces.map((trace) => brief(trace.reward)).join(" · ")],
    ["advantage", row === undefined ? "" : episodes.advantage[row] === null ? "–" : signed(episodes.advantage[row])],
    ["sampled by", row === undefined || episodes.newest[row] === null ? "–" : versions(row)],
    ["trained in", trained(found)],
    ["outcome", [found.outcome, found.fate].filter(Boolean).join(", ")],
    ["seconds", brief(found.seconds)],
  ];
  const scores = found.traces.flatMap((trace) => [
    ...Object.entries(trace.rewards).map(([name, each]) => `${name} ${brief(each?.score ?? null)}${each && each.weight !== 1 ? ` × ${each.weight}` : ""}`),
    ...Object.entries(trace.metrics).map(([name, value]) => `${name} ${brief(value)}`),
    ...(trace.stop ? [`ended: ${trace.stop}`] : []),
  ]);
  return h("div", { class: "heading" },
    h("h1", {}, found.key, h("small", {}, ` ${found.record}`)),
    h("dl", { class: "facts" }, facts.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    h("p", { class: "scores" }, scores.map((each) => h("span", {}, each))));
}

const versions = (row) => {
  const [a, b] = [episodes.oldest[row], episodes.newest[row]];
  return a === b ? `v${b}` : `v${a} to v${b}`;
};

function trained(found) {
  const samples = found.traces.flatMap((trace) => trace.branches.map((branch) => branch.sample).filter(Boolean));
  const names = new Map(samples.map((each) => [`${each.step}.${each.mini_batch}.${each.micro_batch}`, each]));
  return [...names].map(([name, { step, micro_batch }]) => micro_batch === undefined || micro_batch === null
    ? h("span", {}, `step ${step} `)
    : h("a", { href: link({ batch: name }) }, `step ${step}, micro batch ${micro_batch} `));
}

const errors = (found) => {
  const all = [...found.errors, ...found.traces.flatMap((trace) => trace.errors)];
  return h("div", {}, all.map((error) => h("pre", { class: "error" }, typeof error === "string" ? error : JSON.stringify(error, null, 1))));
};

// Links to the rollouts of the same group.
function relatives(row) {
  if (row === undefined) return h("div");
  const all = siblings(row);
  if (all.length < 2) return h("div");
  return h("nav", { class: "siblings", "aria-label": "rollouts of the same task" }, h("span", {}, "same task"),
    all.map((other) => h("a", { href: link({ rollout: episodes.id[other], color: params().get("color") }), "aria-current": other === row ? "true" : null,
      title: episodes.preview[other] }, h("b", {}, brief(episodes.reward[other])), episodes.advantage[other] === null ? null : h("small", {}, signed(episodes.advantage[other])))));
}

const task = (found) =>
  h("details", { class: "task" }, h("summary", {}, "task data"), h("pre", {}, JSON.stringify(found.task, null, 1)));

// Scrolls to the token given in the URL.
function reveal(conversation, found) {
  const wanted = params().get("token");
  if (!wanted) return;
  const [trace, branch, position] = wanted.split(".").map(Number);
  const element = [...conversation.querySelectorAll(".t")].find(({ token }) =>
    found.traces.indexOf(token.trace) === trace && token.branch === branch && token.position === position);
  if (!element) return;
  element.scrollIntoView({ block: "center" });
  element.focus({ preventScroll: true });
  show(element, true);
}
