"""An episode under way, wherever it is played."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import verifiers.v1 as vf
from verifiers.v1.env import Env, RunSlot
from verifiers.v1.trace import Trace

OnTrace = Callable[[str, str, bool], None]
"""Called with id, agent and whether it is trainable of each trace, before its first model call is answered."""


class EpisodeRun(Protocol):
    """One episode of `task`."""

    task: vf.Task

    @property
    def traces(self) -> Sequence[Trace]:
        """What it has got to."""

    async def run(self, context: vf.ModelContext, on_trace: OnTrace) -> vf.Episode:
        """Play it. Cancellation stops it and lets it clean up."""


class LocalEpisodeRun:
    """In this process."""

    def __init__(self, env: Env[Any], task: vf.Task) -> None:
        self.env = env
        self.task = task
        self._slot = RunSlot(task)

    @property
    def traces(self) -> list[Trace]:
        return list(self._slot.traces)

    async def run(self, context: vf.ModelContext, on_trace: OnTrace) -> vf.Episode:
        return await self.env.run_slot(
            self._slot,
            context,
            on_trace=lambda trace: on_trace(trace.id, trace.agent.name, trace.agent.trainable),
        )
