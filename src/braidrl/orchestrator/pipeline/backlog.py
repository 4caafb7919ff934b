"""The backlog: choice of the group that is dispatched next."""

import bisect
import itertools
from collections import deque
from collections.abc import Iterable
from typing import Any

from braidrl.orchestrator.envs.source import TrainEnv
from braidrl.orchestrator.gateway.sessions import derive_seed
from braidrl.orchestrator.pipeline.groups import Group, Work


class Backlog:
    """Queue of work to dispatch, oldest first. When it is empty, a source is chosen by weight and its sampler chooses a
    task.

    The choice depends only on the run's seed, the number of the dispatch and the samplers, never on timing.
    """

    def __init__(self, envs: list[TrainEnv], seed: int) -> None:
        self.envs = envs
        self.seed = seed
        self.next_index = 0
        self.queue: deque[Work] = deque()
        self._weights = list(itertools.accumulate(env.source.weight for env in envs))

    def next_group(self) -> Group:
        """Return the next group to dispatch."""
        if not self.queue:
            index = self._number()
            env = self.choose_env(index)
            self.queue.extend(Work.of_task(index, env, env.curriculum.next_task()))
        work = self.queue.popleft()
        index = self._number() if work.index is None else work.index
        return Group(index, work.env, work.task, work.numbers, work.returns)

    def choose_env(self, index: int) -> TrainEnv:
        """Return the source of dispatch number `index`."""
        # hash of the dispatch number, uniform in [0, total weight): needs no random state in checkpoints
        point = derive_seed(self.seed, "source", index) / 2**63 * self._weights[-1]
        return self.envs[min(bisect.bisect_right(self._weights, point), len(self.envs) - 1)]

    def _number(self) -> int:
        self.next_index += 1
        return self.next_index - 1

    def put_back(self, groups: list[Group]) -> None:
        """Queue the tasks of these groups again, in order and ahead of all other work. They become new groups."""
        self.queue.extendleft(group.retry for group in reversed(groups))

    # -- state

    def state_dict(self, pending: Iterable[Group]) -> dict[str, Any]:
        """Return the next dispatch number and the work that a resumed run does first: `pending`, then the queue."""
        work = [*(group.work for group in pending), *self.queue]
        return {"next_index": self.next_index, "work": [item.record() for item in work]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`."""
        by_name = {env.name: env for env in self.envs}
        self.next_index = state["next_index"]
        for item in state["work"]:
            env = by_name[item["env"]]
            task = env.curriculum.task_at(item["task"])
            self.queue.append(Work(item["index"], env, task, item["numbers"], item["returns"]))
