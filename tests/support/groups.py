"""Groups of episodes as passed to curricula."""

from collections.abc import Iterator, Sequence

import verifiers.v1 as vf

from braidrl.orchestrator.train.algo.routing import assign_advantages
from tests.support.stub_episodes import make_episode


class Endless(vf.Taskset[vf.Task[vf.TaskData], vf.TasksetConfig]):
    """Infinite taskset."""

    INFINITE = True

    def load(self) -> Iterator[vf.Task[vf.TaskData]]:
        number = 0
        while True:
            yield vf.Task(vf.TaskData(prompt=f"task {number}"))
            number += 1


def group_of(
    task: vf.Task,
    rewards: Sequence[float | None],
    advantages: Sequence[float | None] = (),
    group_id: str = "g",
) -> list[vf.Episode]:
    """Return a finished group with one episode per reward (None if it was never scored), and optional advantages."""
    episodes = [make_episode(task, reward, f"{group_id}/{n}").episode for n, reward in enumerate(rewards)]
    for episode in episodes:
        episode.group = vf.GroupInfo(id=group_id)
    for episode, advantage in zip(episodes, advantages, strict=False):
        if advantage is not None:
            assign_advantages(episode.traces[0], advantage)
    return episodes
