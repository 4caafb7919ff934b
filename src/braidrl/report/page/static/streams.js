// Streams that tokens can be coloured by. Diverging scales are blue above zero and orange below, which is safe for
// colour-blind readers. Zero has no colour in both themes.

import { data } from "braid/source.js";

const trainer = (name) => (token) => token.entry?.[name] ?? null;
const difference = (a, b) => (a === null || b === null || a === undefined || b === undefined ? null : a - b);

// Log-ratio in the loss: trainer - sampler log-prob.
export const logRatio = (token) =>
  token.sampled ? difference(token.entry?.logprobs, token.entry?.sampling_logprobs) : null;

export function weight(token, name) {
  if (token.recorded) return token.entry?.[name] ?? 0;
  const own = token.weights?.[name];
  if (own !== undefined) return own;
  return name === "rl" && token.sampled ? 1 : 0;
}

export const members = (token) => {
  if (token.recorded ? !token.entry : token.why !== "U") return [];
  return ["rl", "ce", "ref_kl"].filter((name) => weight(token, name) > 0);
};

const component = (token) => (members(token).length ? members(token).join("+") : null);
const trust = (token) => (!token.entry ? null : { T: "kept", R: "rejected", M: "masked" }[token.why] ?? null);

// kind: `diverging` through 0, `sequential` from 0, or `category`.
export const STREAMS = [
  { key: "component", label: "component", kind: "category", of: component, hint: "losses that include the token" },
  { key: "why", label: "trained?", kind: "category", of: (token) => data.facts.reasons[token.why]?.[0] ?? null, hint: "whether it was trained; if not, the reason" },
  { key: "advantage", label: "advantage", kind: "diverging", of: (token) => token.advantage, hint: "credit from the algorithm" },
  { key: "pull", label: "pull", kind: "diverging", of: trainer("pull"), hint: "-dL/dx: how strongly the step raises its log-prob" },
  { key: "log_ratio", label: "log-ratio", kind: "diverging", of: logRatio, hint: "trainer - sampler log-prob" },
  { key: "trust", label: "trust region", kind: "category", of: trust, hint: "kept, rejected or masked by the loss" },
  { key: "entropy", label: "entropy", kind: "sequential", of: trainer("entropy"), hint: "of the trainer's distribution, in nats" },
  { key: "surprise", label: "surprise", kind: "sequential", of: (token) => (token.sampling === null ? null : -token.sampling), hint: "minus the sampler's log-prob" },
  { key: "reference", label: "reference", kind: "diverging", of: (token) => difference(token.reference, token.sampling), hint: "reference - sampler log-prob" },
  { key: "rl", label: "rl weight", kind: "sequential", of: (token) => weight(token, "rl") || null },
  { key: "ce", label: "ce weight", kind: "sequential", of: (token) => weight(token, "ce") || null },
  { key: "ref_kl", label: "ref_kl weight", kind: "sequential", of: (token) => weight(token, "ref_kl") || null },
  { key: "is_weights", label: "is weight", kind: "sequential", of: trainer("is_weights") },
  { key: "loss_weights", label: "loss weight", kind: "sequential", of: trainer("loss_weights") },
  { key: "version", label: "version", kind: "category", of: (token) => (token.version === null ? null : `v${token.version}`), hint: "policy that sampled it" },
];

// Streams that are only in the trainer's record of the sample.
export const RECORDED = new Set(["pull", "log_ratio", "trust", "entropy", "is_weights", "loss_weights"]);

const PALETTE = 8;
const ORDER = ["rl", "ce", "ref_kl", "trained", "kept", "rejected", "masked"];
const FIXED = {
  rl: "rl", ce: "ce", ref_kl: "ref_kl",
  trained: "kept", kept: "kept", rejected: "rejected", masked: "masked",
  template: "none", context: "none", "advantage 0": "zero", "not recorded": "unrecorded",
};

// Colours of tokens by a stream: { paint(token) -> [class, strength] or null, and values for the legend }.
export function scale(stream, tokens) {
  const values = tokens.map(stream.of);
  const known = values.filter((value) => value !== null && value !== undefined);
  if (stream.kind === "category") return categories(stream, known);
  const sizes = known.map(Math.abs).sort((a, b) => a - b);
  const most = sizes[sizes.length - 1] ?? 0;
  const paint = (token) => {
    const value = stream.of(token);
    if (value === null || value === undefined || value === 0 || !most) return null;
    const strength = 8 + 56 * Math.min(1, Math.abs(value) / most);
    const sign = stream.kind === "sequential" ? "seq" : value > 0 ? "pos" : "neg";
    return [sign, strength];
  };
  return { paint, kind: stream.kind, most, known: known.length };
}

function categories(stream, known) {
  const counts = new Map();
  for (const value of known) counts.set(value, (counts.get(value) ?? 0) + 1);
  const place = (name) => ORDER.indexOf(name) + 1 || ORDER.length + 1;
  const names = [...counts.keys()].sort((a, b) => place(a) - place(b) || String(a).localeCompare(b, "en", { numeric: true }));
  let free = 0;
  const kinds = new Map(names.map((name) => [name, `c-${FIXED[name] ?? free++ % PALETTE}`]));
  const paint = (token) => {
    const value = stream.of(token);
    return value === null || value === undefined ? null : [kinds.get(value), null];
  };
  return { paint, kind: "category", entries: names.map((name) => [name, kinds.get(name), counts.get(name)]), known: known.length };
}
