"""A taskset with faulty rewards."""

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import verifiers.v1 as vf

__all__ = ["StubConfig", "StubData", "StubTask", "StubTaskset"]

Behaviour = Literal["letters", "constant", "raises", "endless", "nan", "outage", "unloadable"]


class StubConfig(vf.TasksetConfig):
    num_tasks: int = 8
    behaviour: Behaviour = "letters"
    slow_tasks: tuple[int, ...] = ()
    """Indices of the tasks whose scoring takes `seconds`."""
    seconds: float = 0.0
    waits_for: str = ""
    """Path that must exist before scoring begins."""


class StubData(vf.TaskData):
    behaviour: Behaviour
    seconds: float
    waits_for: str


class StubTask(vf.Task[StubData]):
    @vf.reward
    async def letters(self, trace: vf.Trace) -> float:
        """Return the share of letters of the reply before `n`, or the value or error of the configured behaviour."""
        await asyncio.sleep(self.data.seconds)
        while self.data.waits_for and not Path(self.data.waits_for).exists():
            await asyncio.sleep(0.01)
        reply = trace.last_reply
        score = sum(letter < "n" for letter in reply) / max(1, len(reply))
        match self.data.behaviour:
            case "constant":
                return 0.5
            case "raises":
                raise RuntimeError("the judge is out of order")
            case "endless":
                await asyncio.Event().wait()
            case "nan":
                return math.nan if score < 0.5 else score
            case "outage" if score < 0.4:
                raise RuntimeError("the judge did not answer")
        return score


class StubTaskset(vf.Taskset[StubTask, StubConfig]):
    def load(self) -> Iterator[StubTask]:
        for index in range(self.config.num_tasks):
            seconds = self.config.seconds if index in self.config.slow_tasks else 0.0
            if self.config.behaviour == "unloadable" and index == 3:
                raise FileNotFoundError("tasks.parquet")
            given = {"behaviour": self.config.behaviour, "waits_for": self.config.waits_for}
            data = StubData(prompt=f"task {index}", seconds=seconds, **given)
            yield StubTask(data, self.config.task)
