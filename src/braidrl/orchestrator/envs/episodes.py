"""Interface of a running episode, and episodes that run in this process."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import verifiers.v1 as vf
from verifiers.v1.env import Env, RunSlot
from verifiers.v1.trace import Trace

OnTrace = Callable[[str, str, bool], None]
"""Callback `(trace id, agent name, trainable)`, called for each trace before its first model call is answered."""


class EpisodeRun(Protocol):
    """A single episode of `task`."""

    task: vf.Task

    @property
    def traces(self) -> Sequence[Trace]:
        """Traces so far."""

    async def run(self, context: vf.ModelContext, on_trace: OnTrace) -> vf.Episode:
        """Run the episode. If cancelled, it stops and cleans up."""


class LocalEpisodeRun:
    """Episode that runs in this process."""

    def __init__(self, env: Env[Any], task: vf.Task) -> None:
        self.env = env
        self.task = task
        self._slot = RunSlot(task)

    @property
    def traces(self) -> list[Trace]:
        """Traces so far."""
        return list(self._slot.traces)

    async def run(self, context: vf.ModelContext, on_trace: OnTrace) -> vf.Episode:
        """Run the episode."""
        return await self.env.run_slot(
            self._slot,
            context,
            on_trace=lambda trace: on_trace(trace.id, trace.agent.name, trace.agent.trainable),
        )
