"""Scoring without a run: recorded episodes in, the same per-token signal on them out."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from verifiers.v1 import Episode, WireEpisode

from braidrl.orchestrator.train.algo.base import Algorithm
from braidrl.orchestrator.train.algo.routing import eligible_traces
from braidrl.utils.run_folder import RunFolder


async def score_group(algorithm: Algorithm, episodes: Sequence[Episode]) -> None:
    """Let an algorithm score the episodes of one group, as the pipeline does."""
    for episode in episodes:
        if eligible_traces([episode]):
            await algorithm.finalize_episode(episode)
    await algorithm.score_group(list(episodes))


def read_groups(path: Path) -> Iterator[tuple[str, list[Episode]]]:
    """(source, episodes) of every recorded group, in the order of the record; signals of the run are taken off.

    Args:
        path: a run folder, or a JSONL file of `braidrl.orchestrator.records`. Episodes without a group form one each.

    Raises:
        ValueError: nothing is recorded there, or a line that is no episode.
    """
    groups: dict[tuple[str, str], list[Episode]] = {}
    for source, episode in _read(path):
        key = episode.group.id if episode.group else episode.id
        groups.setdefault((source, key), []).append(episode)
    if not groups:
        raise ValueError(f"{path} holds no recorded episodes; give a run folder, or a file of episodes/train")
    for (source, _), episodes in groups.items():
        yield source, episodes


def _read(path: Path) -> Iterator[tuple[str, Episode]]:
    files = sorted((RunFolder(path).train_episodes(0).parent).glob("*.jsonl")) if path.is_dir() else [path]
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    record = msgspec.json.decode(line)
                    source = record.pop("braid", {}).get("env") or record["env"].get("name") or ""
                    yield source, episode_of(record)
                except (msgspec.DecodeError, ValueError, KeyError, AttributeError, TypeError) as error:
                    raise ValueError(
                        f"{file}:{number} is no recorded episode ({str(error).splitlines()[0]}); records lie in "
                        "episodes/train of a run folder"
                    ) from error


def episode_of(record: dict[str, Any]) -> Episode:
    """A recorded episode without its signal. A score that JSON could not write comes back as NaN."""
    for trace in record["traces"]:
        for reward in trace.get("rewards", {}).values():
            if reward is not None and reward["score"] is None:
                reward["score"] = float("nan")
        for node in trace["nodes"]:
            node.update(advantages=None, reference_logprobs=None, loss_weights=None)
    return WireEpisode.model_validate(record)
