"""The backlog: which work is dispatched next."""

import bisect
import itertools
from collections import deque
from collections.abc import Iterable
from typing import Any

from braidrl.orchestrator.envs.source import TrainEnv
from braidrl.orchestrator.gateway.sessions import derive_seed
from braidrl.orchestrator.pipeline.groups import Group, Work


class Backlog:
    """Work that waits, oldest first; when there is none, the next task of a source that is chosen by weight.

    The choice depends on the run's seed, the number of the dispatch and the samplers alone.
    """

    def __init__(self, envs: list[TrainEnv], seed: int) -> None:
        self.envs = envs
        self.seed = seed
        self.next_index = 0
        self.queue: deque[Work] = deque()
        self._weights = list(itertools.accumulate(env.source.weight for env in envs))

    def next_group(self) -> Group:
        """The next group to dispatch."""
        if not self.queue:
            index = self._number()
            env = self.choose_env(index)
            self.queue.extend(Work.of_task(index, env, env.curriculum.next_task()))
        work = self.queue.popleft()
        index = self._number() if work.index is None else work.index
        return Group(index, work.env, work.task, work.numbers, work.returns)

    def choose_env(self, index: int) -> TrainEnv:
        """The source of the dispatch of this number."""
        point = derive_seed(self.seed, "source", index) / 2**63 * self._weights[-1]
        return self.envs[min(bisect.bisect_right(self._weights, point), len(self.envs) - 1)]

    def _number(self) -> int:
        self.next_index += 1
        return self.next_index - 1

    def put_back(self, groups: list[Group]) -> None:
        """Dispatch the tasks of these groups once more, as new groups, before anything else."""
        self.queue.extendleft(group.again for group in reversed(groups))

    # -- state

    def state_dict(self, pending: Iterable[Group]) -> dict[str, Any]:
        """The next dispatch number, and the work that a resumed run does first: these groups, then what waits."""
        work = [*(group.work for group in pending), *self.queue]
        return {"next_index": self.next_index, "work": [item.record() for item in work]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        by_name = {env.name: env for env in self.envs}
        self.next_index = state["next_index"]
        for item in state["work"]:
            env = by_name[item["env"]]
            task = env.curriculum.task_at(item["task"])
            self.queue.append(Work(item["index"], env, task, item["numbers"], item["returns"]))
