"""Rescoring of recorded episodes with an algorithm, without a run."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from verifiers.v1 import Episode, Trace, WireEpisode

from braidrl.configs.algorithm import BaseAlgorithmConfig
from braidrl.orchestrator.train.algo import Algorithm, make_algorithm
from braidrl.orchestrator.train.algo.advantage import Array
from braidrl.orchestrator.train.algo.routing import eligible_traces, num_trainable_tokens, trainable_nodes
from braidrl.orchestrator.train.samples import RL, drop_zero_signal, flatten_trace
from braidrl.transport.types import TrainingSample
from braidrl.utils.run_folder import RunFolder

STREAMS = ("advantages", "rl_weights", "ce_weights", "ref_kl_weights", "ref_logprobs")
"""Streams of a sample that an algorithm may write."""


@dataclass
class RecordedGroup:
    """Recorded episodes of one group."""

    source: str
    """Name of the training source."""
    id: str
    step: int
    """Step in which its first episode ended, or 0 if not recorded."""
    episodes: list[Episode]

    @property
    def traces(self) -> list[Trace]:
        return [trace for episode in self.episodes for trace in episode.traces]

    def samples(self) -> list[TrainingSample]:
        """Return one sample per trainable branch of the eligible traces, without a limit of length."""
        return [
            sample
            for episode in self.episodes
            for trace in eligible_traces([episode])
            for sample in flatten_trace(trace, seq_len=sys.maxsize, episode_id=episode.id).samples
        ]


@dataclass
class Replay:
    """Recorded groups, scored by one algorithm."""

    role: str
    """Role of the algorithm in a comparison: `algo` or `against`."""
    config: BaseAlgorithmConfig
    groups: list[RecordedGroup]

    @property
    def title(self) -> str:
        return f"{self.role}: {self.config.type}"

    def token_advantages(self) -> Array:
        """Return the advantages of all sampled tokens of eligible traces, f64[N]. 0 for tokens without one."""
        found = [(advantages_of(trace), num_trainable_tokens(trace)) for trace in self._comparable()]
        return np.concatenate([np.zeros(0), *(np.zeros(n) if a is None else a for a, n in found)])

    def token_signal(self) -> Array:
        """Return the advantages times the token weights in the rl component, f64[N]."""
        weights = [weights_of(trace, RL)[sampled_of(trace)] for trace in self._comparable()]
        return self.token_advantages() * np.concatenate([np.zeros(0), *weights])

    def summary(self) -> dict[str, str]:
        """Return the table row of this replay: text by column name."""
        kept = [[drop_zero_signal(sample) for sample in group.samples()] for group in self.groups]
        samples = [sample for group in kept for sample in group if sample is not None]
        ce = sum(np.count_nonzero(sample.ce_weights) for sample in samples if sample.ce_weights is not None)
        values, signal = self.token_advantages(), self.token_signal()
        return {
            "algorithm": self.title,
            "groups": str(len(kept)),
            "without signal": f"{sum(not any(group) for group in kept) / len(kept):.1%}",
            "mean |A| of a token": f"{np.abs(values).mean():.4g}" if len(values) else "-",
            "rl tokens": str(np.count_nonzero(signal)),
            "ce tokens": str(ce),
        }

    def _comparable(self) -> list[Trace]:
        return [trace for group in self.groups for trace in eligible_traces(group.episodes)]


async def score_batch(algorithm: Algorithm, *groups: Sequence[Episode]) -> None:
    """Score the groups of one step with the same calls as the pipeline."""
    batch: list[Episode] = []
    for episodes in groups:
        eligible = [episode for episode in episodes if eligible_traces([episode])]
        for episode in eligible:
            await algorithm.finalize_episode(episode)
        await algorithm.score_group(list(episodes))
        batch += eligible
    if algorithm.barrier == "batch" and batch:
        await algorithm.score_batch(batch)


def read_groups(path: Path) -> list[RecordedGroup]:
    """Read the recorded groups in recorded order, without the training signals of the run.

    Args:
        path: a run folder, or a JSONL file of `braidrl.orchestrator.pipeline.records`. Each episode without a group
            becomes a group.

    Raises:
        ValueError: no recorded episodes, or a line that is not an episode.
    """
    groups: dict[tuple[str, str], RecordedGroup] = {}
    for source, step, episode in _read(path):
        name = episode.group.id if episode.group else episode.id
        groups.setdefault((source, name), RecordedGroup(source, name, step, [])).episodes.append(episode)
    if not groups:
        raise ValueError(
            f"{path} contains no recorded episodes; pass a run folder, or a file of episodes/train"
        )
    return list(groups.values())


async def replay(role: str, config: BaseAlgorithmConfig, groups: list[RecordedGroup]) -> Replay:
    """Score copies of the groups, with one algorithm instance per source.

    For algorithms with the barrier `batch`, the groups that ended in one step form a batch.
    """
    copies = [replace(group, episodes=[copy_of(episode) for episode in group.episodes]) for group in groups]
    steps: dict[tuple[str, int], list[list[Episode]]] = {}
    for group in copies:
        steps.setdefault((group.source, group.step), []).append(group.episodes)
    algorithms: dict[str, Algorithm] = {}
    async with AsyncExitStack() as stack:
        for (source, _), batch in steps.items():
            if source not in algorithms:
                algorithms[source] = make_algorithm(config)
                stack.push_async_callback(algorithms[source].close)
                await algorithms[source].setup()
            await score_batch(algorithms[source], *batch)
    return Replay(role, config, copies)


def copy_of(episode: Episode) -> Episode:
    """Copy the nodes of an episode, the only part that algorithms write to. The rest is shared with the original."""
    traces = [
        trace.model_copy(update={"nodes": [node.model_copy() for node in trace.nodes]})
        for trace in episode.traces
    ]
    return episode.model_copy(update={"traces": traces})


def sampled_of(trace: Trace) -> NDArray[np.bool_]:
    """Return the mask of sampled tokens of a message graph in node order, bool[T]."""
    return np.array([sampled for node in trace.nodes for sampled in node.mask], dtype=np.bool_)


def weights_of(trace: Trace, component: str) -> Array:
    """Return the component weights of all tokens of a message graph, f64[T]. Absent weights are 1 in rl, else 0."""
    absent = 1.0 if component == RL else 0.0
    streams = [
        (node.loss_weights or {}).get(component) or [absent] * len(node.token_ids) for node in trace.nodes
    ]
    return np.array([weight for stream in streams for weight in stream], dtype=np.float64)


def advantages_of(trace: Trace) -> Array | None:
    """Return the advantages of the sampled tokens in node order, f64[N], or None if no node has any."""
    nodes = list(trainable_nodes(trace))
    if all(node.advantages is None for node in nodes):
        return None
    return np.concatenate([node.advantages or np.zeros(sum(node.mask)) for node in nodes])


def signal_records(replays: list[Replay]) -> Iterator[dict[str, Any]]:
    """Yield one record per trainable branch of an eligible trace, as JSON-serialisable data.

    A record has the tokens and, under the role of each replay, the streams that its algorithm wrote, with one value per
    token of `token_ids`. A message shared by branches has a signal only in the first one.
    """
    for groups in zip(*(each.groups for each in replays), strict=True):
        for samples in zip(*(group.samples() for group in groups), strict=True):
            first = samples[0]
            record = {
                "source": groups[0].source,
                "group": groups[0].id,
                "episode": first.episode_id,
                "trace": first.trace_id,
                "agent": first.agent,
                "branch": first.branch,
                "reward": first.reward,
                "token_ids": first.token_ids.tolist(),
                "mask": first.mask.tolist(),
            }
            for each, sample in zip(replays, samples, strict=True):
                streams = {name: getattr(sample, name) for name in STREAMS}
                record[each.role] = {"type": each.config.type} | {
                    name: stream.tolist() for name, stream in streams.items() if stream is not None
                }
            yield record


def _read(path: Path) -> Iterator[tuple[str, int, Episode]]:
    """Yield (source, step, episode) of each line."""
    files = sorted((RunFolder(path).train_episodes(0).parent).glob("*.jsonl")) if path.is_dir() else [path]
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    record = msgspec.json.decode(line)
                    metadata = record.pop("braid", {})
                    source = metadata.get("env") or record["env"].get("name") or ""
                    yield source, metadata.get("step", 0), episode_of(record)
                except (msgspec.DecodeError, ValueError, KeyError, AttributeError, TypeError) as error:
                    raise ValueError(
                        f"{file}:{number} is not a recorded episode ({str(error).splitlines()[0]}); pass a run folder, "
                        "or a file of its episodes/train"
                    ) from error


def episode_of(record: dict[str, Any]) -> Episode:
    """Convert a record to an episode without training signals. A score of null, recorded for NaN, becomes NaN."""
    for trace in record["traces"]:
        for reward in trace.get("rewards", {}).values():
            if reward is not None and reward["score"] is None:
                reward["score"] = float("nan")
        for node in trace["nodes"]:
            node.update(advantages=None, reference_logprobs=None, loss_weights=None)
    return WireEpisode.model_validate(record)
