"""Sessions: the model calls of one trace, with the seed and the policy version of each.

verifiers gives a trace a random id. The run gives it a key made of group, episode, agent and attempt, so that a
repeated run uses the same seeds.
"""

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from braidrl.orchestrator.train.topk import TopK

if TYPE_CHECKING:
    from braidrl.orchestrator.engines.replica import Replica

NAME_SECONDS = 10.0
"""Maximum seconds to wait for a worker process to report a trace whose first call has arrived."""

Spans = list[tuple[int, int]]
"""`[(policy version, tokens sampled by it), ...]` over the generated tokens of one model call, in order."""


@dataclass
class Session:
    """State of one running trace."""

    key: str
    """Deterministic name, from which the seeds of its calls are derived."""
    temperature: float | None = None
    """Temperature at which the trainer computes log-probs; None for an evaluation, which allows any sampling."""
    head_size: int | None = None
    """Number of most likely tokens to capture per token sampled by the live policy; None to capture none."""
    replica: "Replica | None" = None
    """Replica that caches its growing prefix. Change it with `move`."""
    calls: int = 0
    """Number of calls that have arrived."""
    spans: dict[int, Spans] = field(default_factory=dict)
    """Policy versions of each answered call, by call number."""
    heads: dict[bytes, TopK] = field(default_factory=dict)
    """Captured heads by `call_key` (`braidrl.orchestrator.train.topk`)."""

    def next_call(self) -> int:
        """Return the number of a call that has just arrived, from 0."""
        self.calls += 1
        return self.calls - 1

    def move(self, replica: "Replica | None") -> None:
        """Assign the session to a replica; None if the session has ended."""
        if self.replica is not None:
            self.replica.sessions -= 1
        self.replica = replica
        if replica is not None:
            replica.sessions += 1

    def answered(self) -> list[Spans]:
        """Return the policy versions of the answered calls, in call order."""
        return [self.spans[call] for call in sorted(self.spans)]


class UnknownTraceError(LookupError):
    """A model call belongs to no known trace."""


class Sessions(dict[str, Session]):
    """Sessions by trace id."""

    def __init__(self) -> None:
        super().__init__()
        self._late = False
        self._awaited: dict[str, asyncio.Event] = {}

    def expect_late_traces(self) -> None:
        """Let the first call of a trace wait for its session. Worker processes report a trace after they start it, so
        its first call may overtake the report."""
        self._late = True

    def open(self, trace_id: str, session: Session) -> None:
        """Add the session of a trace and release the calls that wait for it."""
        self[trace_id] = session
        if (awaited := self._awaited.pop(trace_id, None)) is not None:
            awaited.set()

    async def find(self, trace_id: str | None) -> Session | None:
        """Return the session of a call, or None if it belongs to no trace.

        Raises `UnknownTraceError` if no worker reports the trace within `NAME_SECONDS`.
        """
        if trace_id is None or trace_id in self or not self._late:
            return self.get(trace_id or "")
        try:
            async with asyncio.timeout(NAME_SECONDS):
                await self._awaited.setdefault(trace_id, asyncio.Event()).wait()
        except TimeoutError:
            self._awaited.pop(trace_id, None)
            raise UnknownTraceError(
                f"no running episode has a trace {trace_id!r} (waited {NAME_SECONDS:g} s for a worker to report it); "
                "the X-Session-ID header must be the id of a trace whose episode has not ended"
            ) from None
        return self.get(trace_id)


def derive_seed(seed: int, *path: str | int) -> int:
    """Return a seed in [0, 2**63) that depends only on the run's seed and on every part of `path`."""
    text = "/".join([str(seed), *map(str, path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
