"""Sessions: the model calls of one trace, with the seed and the policy version of each.

verifiers names a trace by a random id. The run names it by a key that says which group, episode, agent and
attempt it is, so that seeds repeat when the run repeats.
"""

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from braidrl.orchestrator.train.topk import TopK

if TYPE_CHECKING:
    from braidrl.orchestrator.engines.replica import Replica

NAME_SECONDS = 10.0
"""Longest wait for the name of a trace that a worker process plays."""

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
    """Where its growing prefix is cached (`move` changes it)."""
    calls: int = 0
    """Calls that arrived."""
    spans: dict[int, Spans] = field(default_factory=dict)
    """Versions of the calls that were answered, by the number of the call."""
    heads: dict[bytes, TopK] = field(default_factory=dict)
    """What was captured, by the key of the call (`braidrl.orchestrator.train.topk`)."""

    def next_call(self) -> int:
        """Number the call that has just arrived."""
        self.calls += 1
        return self.calls - 1

    def move(self, replica: "Replica | None") -> None:
        """Make a replica its home; None: it has ended."""
        if self.replica is not None:
            self.replica.sessions -= 1
        self.replica = replica
        if replica is not None:
            replica.sessions += 1

    def answered(self) -> list[Spans]:
        """Versions of the answered calls, in call order."""
        return [self.spans[call] for call in sorted(self.spans)]


class UnknownTraceError(LookupError):
    """A call of a trace that nobody has named."""


class Sessions(dict[str, Session]):
    """Sessions by trace id."""

    def __init__(self) -> None:
        super().__init__()
        self.late = False
        """Whether a name may arrive after its trace's first call: worker processes report what they start."""
        self._awaited: dict[str, asyncio.Event] = {}

    def open(self, trace_id: str, session: Session) -> None:
        """Name a trace."""
        self[trace_id] = session
        if (awaited := self._awaited.pop(trace_id, None)) is not None:
            awaited.set()

    async def find(self, trace_id: str | None) -> Session | None:
        """The session of a call; None where it belongs to no trace. Raises `UnknownTraceError` when the name of a
        worker's trace does not arrive in time."""
        if trace_id is None or trace_id in self or not self.late:
            return self.get(trace_id or "")
        try:
            async with asyncio.timeout(NAME_SECONDS):
                await self._awaited.setdefault(trace_id, asyncio.Event()).wait()
        except TimeoutError:
            self._awaited.pop(trace_id, None)
            raise UnknownTraceError(
                f"no episode under way has a trace {trace_id!r} (waited {NAME_SECONDS:g} s for a worker to report it)"
            ) from None
        return self.get(trace_id)


def derive_seed(seed: int, *path: str | int) -> int:
    """A seed in [0, 2**63) that depends on the run's seed and on every part of `path`, on nothing else."""
    text = "/".join([str(seed), *map(str, path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
