"""Credit assignment: calls the hooks of algorithms on complete episodes, groups and batches."""

import logging
from collections.abc import Iterable

from verifiers.v1 import Episode
from verifiers.v1.trace import Error, Trace

from braidrl.orchestrator.envs.source import FinishedEpisode, TrainEnv
from braidrl.orchestrator.pipeline.groups import Group, ReadyTrace
from braidrl.orchestrator.train.algo import Algorithm
from braidrl.orchestrator.train.algo.routing import ineligibility

logger = logging.getLogger(__name__)


def eligible(finished: FinishedEpisode) -> list[Trace]:
    """Return the traces of an ended episode that may train."""
    return [trace for trace in finished.episode.traces if ineligibility(finished.episode, trace) is None]


async def score_episode(algorithm: Algorithm, finished: FinishedEpisode) -> None:
    """Score an ended episode. If scoring fails (e.g. an unreachable teacher), the episode is marked as failed."""
    if not eligible(finished):
        return
    try:
        await algorithm.finalize_episode(finished.episode)
    except Exception as error:
        logger.warning("scoring episode %s failed", finished.key, exc_info=True)
        finished.episode.ok = False
        finished.episode.errors.append(Error(type=type(error).__name__, message=f"scoring: {error}"))


async def score_group(group: Group) -> None:
    """Score a complete group. Raises `RuntimeError` if its algorithm raises."""
    await _score(group.env.algorithm, "score_group", group.episodes, f"group {group.id}")


async def score_batch(algorithm: Algorithm, traces: Iterable[ReadyTrace], step: int) -> None:
    """Score the episodes of these traces of a batch, once each.

    An episode whose traces are spread over several batches is scored with the first of them. Raises `RuntimeError` if
    the algorithm raises.
    """
    first = {trace.episode.id: trace for trace in traces if trace.episode.id not in trace.group.credited}
    for episode_id, trace in first.items():
        trace.group.credited.add(episode_id)
    if first:
        episodes = [trace.episode for trace in first.values()]
        await _score(algorithm, "score_batch", episodes, f"the batch of step {step}")


def waiting_for_batch(traces: Iterable[ReadyTrace]) -> dict[TrainEnv, list[ReadyTrace]]:
    """Return the traces whose credit is known only once the batch is full, by source."""
    waiting: dict[TrainEnv, list[ReadyTrace]] = {}
    for trace in traces:
        if trace.group.waits_for_batch:
            waiting.setdefault(trace.group.env, []).append(trace)
    return waiting


async def _score(algorithm: Algorithm, hook: str, episodes: list[Episode], scored: str) -> None:
    try:
        await getattr(algorithm, hook)(episodes)
    except Exception as error:
        raise RuntimeError(
            f"{type(algorithm).__name__}.{hook} failed on {scored}: {type(error).__name__}: {error}. Samples cannot "
            "train without credit, so the run stops: fix the algorithm"
        ) from error
