// Tooltip with the values of the token under the pointer or with the focus, in full precision.

import { h, exact } from "braid/dom.js";
import { data } from "braid/source.js";
import { logRatio, members, weight } from "braid/streams.js";
import { visible } from "braid/tokens.js";

const box = document.getElementById("tip");
let held = null;

// [name in the record files, label, value] of each value that the token has.
export function numbers(token) {
  const entry = token.entry;
  const found = [
    ["logprobs", "sampler log-prob", token.sampling],
    ["trainer_logprobs", "trainer log-prob", entry?.logprobs],
    ["log_ratio", "log-ratio", logRatio(token)],
    ["entropy", "entropy", entry?.entropy],
    ["advantages", "advantage", token.advantage],
    ["pull", "pull", entry?.pull],
    ["reference_logprobs", "reference log-prob", token.reference],
    ...["rl", "ce", "ref_kl"].map((name) => [name, `${name} weight`, weight(token, name) || (token.weights?.[name] ?? null)]),
    ["old_logprobs", "log-prob before the step", entry?.old_logprobs],
    ["kl_ref_logprobs", "log-prob of the trainer's reference", entry?.kl_ref_logprobs],
    ["is_weights", "importance weight", entry?.is_weights],
    ["loss_weights", "loss weight", entry?.loss_weights],
    ["version", "policy version", token.version],
  ];
  return found.filter(([, , value]) => value !== null && value !== undefined);
}

// Reason why the token was or was not trained, with the relevant values.
function because(token) {
  const [name, text] = data.facts.reasons[token.why] ?? ["unknown", ""];
  const of = members(token);
  const parts = of.length ? `member of ${of.join(" and ")}` : "";
  if (token.why === "R") return `${name}: ${text}${change(token)}`;
  if (token.why === "T") return `${name} (${parts}) in step ${token.entry.step}, micro batch ${token.entry.micro_batch}: ${text}`;
  return `${name}: ${text}`;
}

function change(token) {
  const { logprobs, sampling_logprobs } = token.entry;
  const percent = (x) => `${Number((100 * Math.exp(x)).toPrecision(3))}%`;
  const { type, eps } = data.facts.loss;
  const own = type === "ipo" && eps !== undefined ? `, ipo allows a change of ${eps}` : `, loss ${type}`;
  const bound = members(token).includes("rl") ? own : ", ref_kl allows a decrease of 0.2";
  return ` (its probability went from ${percent(sampling_logprobs)} to ${percent(logprobs)}${bound})`;
}

export function show(element, hold = false) {
  const token = element.token;
  if (held && !hold) return;
  held?.classList.remove("held");
  held = hold ? element : null;
  held?.classList.add("held");
  const bytes = token.bytes && token.text === "" ? ` bytes ${[...token.bytes].map((b) => b.toString(16).padStart(2, "0")).join(" ")}` : "";
  box.replaceChildren(
    h("header", {}, h("code", {}, visible(token)), h("small", {}, `id ${token.id} · position ${token.position} · branch ${token.branch}${bytes}`)),
    h("p", { class: `why w-${token.why}` }, because(token)),
    h("dl", {}, numbers(token).flatMap(([name, label, value]) => [h("dt", {}, label), h("dd", { "data-name": name }, exact(value))])),
  );
  box.hidden = false;
  place(element);
}

function place(element) {
  const [spot] = element.getClientRects();
  const size = box.getBoundingClientRect();
  const left = Math.max(8, Math.min(spot.left, innerWidth - size.width - 8));
  const below = spot.bottom + 8;
  const top = below + size.height < innerHeight ? below : Math.max(8, spot.top - size.height - 8);
  box.style.left = `${left}px`;
  box.style.top = `${top}px`;
}

export function hide(release = true) {
  if (held && !release) return;
  held?.classList.remove("held");
  held = null;
  box.hidden = true;
}

// Adds event listeners to an element with tokens. `pinned` is called with the token that was clicked or focused.
export function listen(root, pinned) {
  const tokenAt = (event) => event.target.closest?.(".t");
  root.addEventListener("pointerover", (event) => (tokenAt(event) ? show(tokenAt(event)) : hide(false)));
  root.addEventListener("pointerleave", () => hide(false));
  root.addEventListener("click", (event) => {
    const element = tokenAt(event);
    if (!element) return hide();
    if (held === element) return hide();
    element.focus({ preventScroll: true });
    show(element, true);
    pinned(element.token);
  });
  root.addEventListener("keydown", (event) => {
    const element = tokenAt(event);
    if (!element || !(event.key in MOVES)) return;
    event.preventDefault();
    event.stopPropagation();
    const all = [...root.querySelectorAll(".t")];
    const target = all[all.indexOf(element) + MOVES[event.key]] ?? element;
    target.focus();
    show(target, true);
    pinned(target.token);
  });
}

const MOVES = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10 };
