"""Builders of real verifiers episodes, and access to their assigned advantages."""

from collections.abc import Sequence

from verifiers.v1 import Episode

from braidrl.testing.episodes import TASK, episode, node, trace

__all__ = ["TASK", "advantages_of", "episode", "node", "trace"]


def advantages_of(episodes: Sequence[Episode]) -> list[float | None]:
    """Return the advantage of each trace, which must be uniform over its sampled tokens. None if unassigned."""
    found = []
    for item in (item for played in episodes for item in played.traces):
        values = {value for graph_node in item.nodes for value in graph_node.advantages or []}
        assert len(values) <= 1
        found.append(values.pop() if values else None)
    return found
