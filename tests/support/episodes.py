"""Builders of real verifiers episodes, and what an algorithm wrote on them."""

from collections.abc import Sequence

from verifiers.v1 import Episode

from braidrl.testing.episodes import TASK, episode, node, trace

__all__ = ["TASK", "advantages_of", "episode", "node", "trace"]


def advantages_of(episodes: Sequence[Episode]) -> list[float | None]:
    """The advantage of each trace's sampled tokens, which must be uniform; None where unassigned."""
    found = []
    for item in (item for played in episodes for item in played.traces):
        values = {value for graph_node in item.nodes for value in graph_node.advantages or []}
        assert len(values) <= 1
        found.append(values.pop() if values else None)
    return found
