// Tokens of branches with their values, and their elements.

import { h } from "braid/dom.js";
import { pieces } from "braid/source.js";

const MANY = 60;

// All tokens of a branch in order. `shared(node)` is true if an earlier branch contains the message.
export function tokensOf(rollout, trace, number, shared = () => false) {
  const branch = trace.branches[number];
  const entries = new Map((branch.sample?.positions ?? []).map((position, place) => [position, place]));
  const recorded = branch.sample?.positions !== undefined;
  const found = [];
  for (const node of branch.nodes) {
    const message = trace.nodes[node];
    let nth = 0;
    for (let index = 0; index < message.token_ids.length; index++) {
      const sampled = message.mask[index] === "1";
      const position = found.length;
      const own = (name) => (sampled ? message[name]?.[nth] ?? null : null);
      found.push({
        rollout: rollout.id, trace, branch: number, position, node, index, id: message.token_ids[index], sampled, recorded,
        content: message.content === "" || message.content[index] === "1",
        shared: shared(node),
        why: branch.why[position],
        version: message.versions && sampled ? message.versions[nth] : null,
        sampling: own("logprobs"),
        advantage: own("advantages"),
        reference: own("reference_logprobs"),
        weights: message.loss_weights && Object.fromEntries(Object.entries(message.loss_weights).map(([name, all]) => [name, all[index]])),
        entry: entryOf(branch.sample, entries.get(position)),
      });
      if (sampled) nth++;
    }
  }
  decode(found);
  for (const token of found) if (token.sampled && token.advantage === null) token.advantage = token.entry?.advantages ?? null;
  return found;
}

// The trainer's values of one loss entry.
function entryOf(sample, place) {
  if (place === undefined) return null;
  const entry = { step: sample.step, mini_batch: sample.mini_batch, micro_batch: sample.micro_batch };
  for (const [name, values] of Object.entries(sample)) {
    if (Array.isArray(values) && name !== "positions") entry[name] = values[place];
  }
  return entry;
}

// A character that spans several tokens is shown in the last of them.
function decode(tokens) {
  let decoder = new TextDecoder();
  let node = null;
  for (const token of tokens) {
    if (token.node !== node) decoder = new TextDecoder();
    node = token.node;
    const piece = pieces.get(token.id);
    token.text = piece ? decoder.decode(piece, { stream: true }) : `⟨${token.id}⟩`;
    token.bytes = piece ?? null;
  }
}

const VISIBLE = [[/\r/g, "␍"], [/\t/g, "→\t"], [/[\u0000-\u0008\u000b-\u001f\u007f]/g, (c) => String.fromCodePoint(0x2400 + (c.codePointAt(0) & 0x1f))]];

// Displayed text of a token: invisible characters get a symbol. Newlines of the chat template do not break the line.
export function visible(token) {
  let text = token.text;
  for (const [pattern, sign] of VISIBLE) text = text.replace(pattern, sign);
  if (text === "") return "·";
  return text.replace(/\n/g, token.content ? "⏎\n" : "⏎");
}

export function tokenElement(token, scale) {
  const painted = scale.paint(token);
  const classes = ["t"];
  if (!token.content) classes.push("template");
  if (token.shared) classes.push("shared");
  if (painted) classes.push(painted[0]);
  const element = h("span", { class: classes.join(" "), "data-at": `${token.node}.${token.index}`, tabindex: "-1" }, visible(token));
  if (painted?.[1]) element.style.setProperty("--a", `${painted[1].toFixed(1)}%`);
  element.token = token;
  return element;
}

// Messages of a branch as blocks. `tokens` are those of the whole branch, `nodes` are the messages to show.
export function messages(trace, tokens, nodes, scale) {
  return nodes.map((node) => {
    const message = trace.nodes[node];
    const own = tokens.filter((token) => token.node === node);
    const body = h("div", { class: "body" });
    if (message.text !== null) body.append(h("span", { class: "untokenised" }, message.text || "(no text)"));
    body.append(...own.map((token) => tokenElement(token, scale)));
    const facts = [`#${node}`];
    const sampled = own.filter((token) => token.sampled).length;
    if (sampled) facts.push(`${sampled} sampled`);
    if (own.length) facts.push(`${own.length} tokens`);
    const long = own.length > MANY;
    return h("article", { class: `message ${message.role}${message.sampled ? " sampled" : ""}${long ? " long" : ""}`, "data-node": node },
      h("header", {}, h("b", {}, message.role), h("small", {}, facts.join(" · "))), body);
  });
}
