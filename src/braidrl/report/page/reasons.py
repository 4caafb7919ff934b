"""Reasons why the tokens of a branch were or were not trained, as one letter per token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REASONS = {
    "T": ("trained", "the token contributed to the weight update"),
    "R": (
        "rejected",
        "in the loss, but without gradient: rejected by the trust region or cut off by the clip",
    ),
    "M": (
        "masked",
        "removed before the step by m2po, is_correction or the aggregation: its loss weight is 0",
    ),
    "U": (
        "not recorded",
        "trained, but its sample is beyond trainer.recorded_tokens: no values from the trainer",
    ),
    "0": ("advantage 0", "its advantage is 0: it carries no signal and is left out of the batch"),
    "A": ("no advantage", "its algorithm assigned no advantage"),
    "W": ("weight 0", "its weight is 0 in every loss component"),
    "S": ("trained elsewhere", "shared with an earlier branch, where it is trained once"),
    "O": ("too old", "sampled by a version older than max_off_policy_steps allows"),
    "G": ("too few", "too few episodes of its group succeeded for a comparison"),
    "J": ("gate", "a gate of the curriculum rejected its group"),
    "L": ("too long", "its branch is longer than seq_len"),
    "K": ("compaction", "on an untrained branch: a compaction attempt that the agent discarded"),
    "X": ("error", "its episode ended with an error: excluded from comparison and training"),
    "N": ("no reward", "its trace has no finite reward"),
    "F": ("frozen", "its agent is not trainable"),
    "E": ("evaluation", "part of an evaluation episode, which is never trained"),
    "B": ("waits", "not in a trained batch so far"),
    "P": ("template", "written by the chat template"),
    "C": ("context", "not sampled by the policy: context for later tokens"),
}
"""Letter -> (short name, explanation)."""


@dataclass(frozen=True)
class BranchContext:
    """Facts that apply to all tokens of a branch."""

    kind: str
    """`train` or `eval`."""
    outcome: str
    fate: str | None
    """Outcome of the group in the ledger; None if it is still open or the run has no ledger."""
    trainable: bool = True
    """True if the agent is trainable."""
    error: bool = False
    reward: bool = True
    """True if the trace has a finite reward."""
    compacted: bool = False
    too_long: bool = False
    sample: Mapping[str, Any] | None = None
    """Sample of the branch as recorded by the trainer."""

    def of_all(self, scored: bool) -> str | None:
        """Return the reason that applies to all tokens of the branch, or None.

        Tokens without credit (`scored` False, for example observations) train even if the group is too small.
        """
        whole = (
            ("E", self.kind == "eval"),
            ("F", not self.trainable),
            ("X", self.error),
            ("N", not self.reward),
            ("K", self.compacted),
            ("J", self.outcome == "rejected"),
            ("G", self.outcome == "too_few" and scored),
            ("O", "stale" in (self.outcome, self.fate) and self.sample is None),
        )
        return next((letter for letter, holds in whole if holds), None)

    def at_last(self) -> str:
        """Return the reason for a token that qualifies for training."""
        if self.sample is not None or self.fate == "trained":
            return "L" if self.too_long and self.sample is None else "U"
        return "L" if self.too_long else "B"


def reasons(nodes: Sequence[Mapping[str, Any]], shared: Sequence[bool], circumstances: BranchContext) -> str:
    """Return one letter per token of a branch.

    Args:
        nodes: nodes of the branch.
        shared: for each node, True if an earlier branch contains it.
    """
    trained = _trained(circumstances.sample)
    letters: list[str] = []
    for node, elsewhere in zip(nodes, shared, strict=True):
        own = _untrained(node, circumstances)
        if elsewhere:
            own = [letter if letter in "PC" else "S" for letter in own]
        start = len(letters)
        letters += own
        for position in range(start, len(letters)) if trained else ():
            letters[position] = trained.get(position, letters[position])
    return "".join(letters)


def _trained(sample: Mapping[str, Any] | None) -> dict[int, str]:
    """Return the letter of each recorded loss entry by position."""
    if sample is None or "positions" not in sample:
        return {}
    weights = sample.get("loss_weights") or [1.0] * len(sample["positions"])
    return {
        position: "T" if pull else "R" if weight else "M"
        for position, pull, weight in zip(sample["positions"], sample["pull"], weights, strict=True)
    }


def _untrained(node: Mapping[str, Any], circumstances: BranchContext) -> list[str]:
    """Return the letters of a node's tokens if none of them was recorded as a loss entry."""
    mask, content, streams = node["mask"], node.get("is_content"), node.get("loss_weights") or {}
    letters = ["C" if each else "P" for each in content] if content else ["C"] * len(mask)
    credit = iter(node.get("advantages") or [None] * sum(mask))
    others = [streams[name] for name in ("ce", "ref_kl") if name in streams]
    for index, sampled in enumerate(mask) if others or any(mask) else ():
        advantage = next(credit) if sampled else None
        if any(stream[index] for stream in others):
            letters[index] = circumstances.of_all(scored=False) or circumstances.at_last()
        elif sampled:
            weight = streams["rl"][index] if "rl" in streams else 1.0
            letters[index] = circumstances.of_all(scored=True) or _credit_reason(
                weight, advantage, circumstances
            )
    return letters


def _credit_reason(weight: float, advantage: float | None, circumstances: BranchContext) -> str:
    """Return the letter of a sampled token of rl from its weight and advantage."""
    if not weight:
        return "W"
    if advantage is None:
        return "A"
    return circumstances.at_last() if advantage else "0"
