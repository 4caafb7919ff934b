// Selection of the stream that colours tokens, and its legend.

import { h, brief, count } from "braid/dom.js";
import { note, params } from "braid/router.js";
import { RECORDED, STREAMS, scale } from "braid/streams.js";

const FIRST = "advantage";

// Returns { element, scale, keys } for the tokens. `changed` is called after another stream was chosen.
export function painter(tokens, changed, preferred = FIRST) {
  const usable = STREAMS.filter((stream) => tokens.some((token) => stream.of(token) !== null && stream.of(token) !== undefined));
  const wanted = params().get("color") ?? preferred;
  const chosen = usable.find((stream) => stream.key === wanted) ?? usable[0] ?? STREAMS[0];
  const made = scale(chosen, tokens);
  const choose = (key) => {
    note({ color: key });
    changed();
  };
  const button = (stream) => {
    const works = usable.includes(stream);
    const number = usable.indexOf(stream) + 1;
    return h("button", { type: "button", "aria-pressed": String(stream === chosen), "data-stream": stream.key, disabled: !works,
      title: works ? `${stream.hint ?? ""}${number < 10 ? ` (key ${number})` : ""}` : absent(stream, tokens),
      onclick: () => choose(stream.key) }, stream.label);
  };
  const optional = new Set(["rl", "ce", "ref_kl", "is_weights", "loss_weights", "reference"]);
  const shown = STREAMS.filter((stream) => usable.includes(stream) || !optional.has(stream.key));
  const element = h("div", { class: "painter" },
    h("div", { class: "choices", role: "group", "aria-label": "colour tokens by" }, shown.map(button)),
    legend(chosen, made), missing(tokens));
  return { element, scale: made, keys: usable.map((stream) => () => choose(stream.key)) };
}

const absent = (stream, tokens) =>
  RECORDED.has(stream.key) && !tokens.some((token) => token.recorded)
    ? "not available: the trainer recorded no values of these tokens"
    : "no token here has a value";

// Note on streams that are not available in this view.
function missing(tokens) {
  if (tokens.some((token) => token.recorded) || !tokens.length) return null;
  const evaluated = tokens.every((token) => "ECP".includes(token.why));
  const why = evaluated ? "evaluations are not trained"
    : "the trainer recorded no values: not trained (yet), beyond trainer.recorded_tokens, or written by an older Braid";
  return h("p", { class: "note small" }, `Pull, log-ratio, entropy and trust region are not available: ${why}.`);
}

function legend(stream, made) {
  const box = h("div", { class: "legend" });
  if (made.kind === "category") {
    box.append(...made.entries.map(([name, kind, number]) =>
      h("span", { class: "key" }, h("i", { class: `t ${kind}` }, "ab"), ` ${name} `, h("small", {}, number.toLocaleString("en")))));
  } else {
    const ends = made.kind === "diverging" ? [`−${brief(made.most)}`, "0", `+${brief(made.most)}`] : ["0", brief(made.most)];
    box.append(h("span", { class: `scale ${made.kind}` }), h("span", { class: "ends" }, ends.map((end) => h("span", {}, end))));
  }
  box.append(h("small", {}, `${stream.hint ?? stream.label} · ${count(made.known, "token")}`));
  return box;
}
