"""Why each token of a branch was or was not trained, from what was recorded: one letter a token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REASONS = {
    "T": ("trained", "it moved the weights"),
    "R": (
        "rejected",
        "a member of the loss with no pull: its trust region rejected it, or its clip cut it off",
    ),
    "M": (
        "masked",
        "taken out before the step, by m2po, is_correction or the aggregation: its loss weight is 0",
    ),
    "U": (
        "not recorded",
        "trained, but trainer.recorded_tokens did not reach this sample: no numbers of the trainer",
    ),
    "0": ("advantage 0", "its advantage is 0: it says nothing, and is left out of the batch"),
    "A": ("no advantage", "its algorithm assigned no advantage"),
    "W": ("weight 0", "its weight is 0 in every loss component"),
    "S": ("trains elsewhere", "shared with an earlier branch, in which it trains once"),
    "O": ("too old", "sampled by a version that had become older than max_off_policy_steps allows"),
    "G": ("too few", "too few episodes of its group ended well for a comparison"),
    "J": ("gate", "a gate of the curriculum rejected its group"),
    "L": ("too long", "its branch is longer than seq_len"),
    "K": ("compaction", "on a branch that does not train: a compaction that the agent did not go on from"),
    "X": ("error", "its episode ended with an error: it takes no part in comparison or training"),
    "N": ("no reward", "its trace has no finite reward"),
    "F": ("frozen", "its agent is not trainable"),
    "E": ("evaluation", "an episode of an evaluation: nothing of it trains"),
    "B": ("waits", "in no batch that was trained so far"),
    "P": ("template", "the chat template wrote it"),
    "C": ("context", "not sampled by the policy: context for what follows"),
}
"""Letter -> (short name, the reason in words)."""


@dataclass(frozen=True)
class BranchContext:
    """What decides for the whole of a branch."""

    kind: str
    """`train` or `eval`."""
    outcome: str
    fate: str | None
    """Of its group, from the ledger; None: not done with yet, or a run that keeps none."""
    trainable: bool = True
    """Of its agent."""
    error: bool = False
    reward: bool = True
    """Whether its trace has a finite one."""
    compacted: bool = False
    too_long: bool = False
    sample: Mapping[str, Any] | None = None
    """Its sample in a batch, as the trainer recorded it."""

    def of_all(self, scored: bool) -> str | None:
        """The reason that holds for each of its tokens, if there is one. What carries no credit (`scored` False, as
        observations) trains without siblings, too."""
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
        """The reason of a token that would train."""
        if self.sample is not None or self.fate == "trained":
            return "L" if self.too_long and self.sample is None else "U"
        return "L" if self.too_long else "B"


def reasons(nodes: Sequence[Mapping[str, Any]], shared: Sequence[bool], circumstances: BranchContext) -> str:
    """A letter for each token of a branch, given as its nodes; `shared` are those that an earlier branch has."""
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
    """Position -> letter of the loss entries that were recorded."""
    if sample is None or "positions" not in sample:
        return {}
    weights = sample.get("loss_weights") or [1.0] * len(sample["positions"])
    return {
        position: "T" if pull else "R" if weight else "M"
        for position, pull, weight in zip(sample["positions"], sample["pull"], weights, strict=True)
    }


def _untrained(node: Mapping[str, Any], circumstances: BranchContext) -> list[str]:
    """Why the tokens of a node would not train, if none was recorded as a loss entry."""
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
            letters[index] = circumstances.of_all(scored=True) or _unsaid(weight, advantage, circumstances)
    return letters


def _unsaid(weight: float, advantage: float | None, circumstances: BranchContext) -> str:
    """Of a sampled token of rl: whether it has a weight and an advantage."""
    if not weight:
        return "W"
    if advantage is None:
        return "A"
    return circumstances.at_last() if advantage else "0"
