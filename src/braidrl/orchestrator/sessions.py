"""Sessions: the model calls of one trace, with the seed and the policy version of each.

verifiers names a trace by a random id. The run names it by a key that says which group, episode, agent and
attempt it is, so that seeds repeat when the run repeats.
"""

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from braidrl.orchestrator.train.heads import Head

if TYPE_CHECKING:
    from braidrl.orchestrator.replicas import Replica

Spans = list[tuple[int, int]]
"""`[(policy version, tokens sampled by it), ...]` over the generated tokens of one model call, in order."""


@dataclass
class Session:
    """One trace while it runs."""

    key: str
    """Deterministic name; the root of its seeds."""
    temperature: float | None = None
    """What the trainer will replay; None for an evaluation, where every sampling is allowed."""
    head_size: int | None = None
    """Most likely tokens to capture at each one that the live policy samples; None: none."""
    replica: "Replica | None" = None
    """Where its growing prefix is cached."""
    calls: int = 0
    """Calls that arrived."""
    spans: dict[int, Spans] = field(default_factory=dict)
    """Versions of the calls that were answered, by the number of the call."""
    heads: dict[bytes, Head] = field(default_factory=dict)
    """What was captured, by the key of the call (`braidrl.orchestrator.train.heads`)."""

    def next_call(self) -> int:
        """Number the call that has just arrived."""
        self.calls += 1
        return self.calls - 1

    def answered(self) -> list[Spans]:
        """Versions of the answered calls, in call order."""
        return [self.spans[call] for call in sorted(self.spans)]


def derive_seed(seed: int, *path: str | int) -> int:
    """A seed in [0, 2**63) that depends on the run's seed and on every part of `path`, on nothing else."""
    text = "/".join([str(seed), *map(str, path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
