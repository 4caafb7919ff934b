"""A taskset whose rewards kill or block the process that computes them."""

import os
import sys
import time
from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["WorkerConfig", "WorkerData", "WorkerTask", "WorkerTaskset"]


class WorkerConfig(vf.TasksetConfig):
    behaviours: tuple[str, ...] = ("pid",)
    """Of each task: `pid`, `dies`, `blocks`."""
    unloadable: bool = False
    """The taskset loads in the process that made it alone."""


class WorkerData(vf.TaskData):
    behaviour: str


class WorkerTask(vf.Task[WorkerData]):
    @vf.reward
    async def pid(self, trace: vf.Trace) -> float:
        """Number of the process."""
        if self.data.behaviour == "dies":
            print("I am about to die", file=sys.stderr, flush=True)
            time.sleep(1)  # the socket's own thread sends the turn that was sampled
            os._exit(7)
        if self.data.behaviour == "blocks":
            time.sleep(600)
        return float(os.getpid())


class WorkerTaskset(vf.Taskset[WorkerTask, WorkerConfig]):
    def load(self) -> Iterator[WorkerTask]:
        for index, behaviour in enumerate(self.config.behaviours):
            yield WorkerTask(WorkerData(prompt=f"task {index}", behaviour=behaviour), self.config.task)
