"""A taskset whose rewards kill or block their process."""

import os
import sys
import time
from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["WorkerConfig", "WorkerData", "WorkerTask", "WorkerTaskset"]


class WorkerConfig(vf.TasksetConfig):
    behaviours: tuple[str, ...] = ("pid",)
    """Behaviour of each task: `pid`, `dies` or `blocks`."""
    unloadable: bool = False
    """True if the taskset can be loaded only in the process that created its config."""


class WorkerData(vf.TaskData):
    behaviour: str


class WorkerTask(vf.Task[WorkerData]):
    @vf.reward
    async def pid(self, trace: vf.Trace) -> float:
        """Return the process id."""
        if self.data.behaviour == "dies":
            print("I am about to die", file=sys.stderr, flush=True)
            time.sleep(1)  # time for the socket's thread to send the sampled turn
            os._exit(7)
        if self.data.behaviour == "blocks":
            time.sleep(600)
        return float(os.getpid())


class WorkerTaskset(vf.Taskset[WorkerTask, WorkerConfig]):
    def load(self) -> Iterator[WorkerTask]:
        for index, behaviour in enumerate(self.config.behaviours):
            yield WorkerTask(WorkerData(prompt=f"task {index}", behaviour=behaviour), self.config.task)
