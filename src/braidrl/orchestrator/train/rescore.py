"""Scoring without a run: recorded episodes in, the same per-token signal on them out."""

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
"""What an algorithm may write, as the trainer reads it."""


@dataclass
class RecordedGroup:
    """The recorded episodes of one task that are compared."""

    source: str
    """Name of the training source."""
    id: str
    step: int
    """For which its first episode ended; 0 where the record does not say."""
    episodes: list[Episode]

    @property
    def traces(self) -> list[Trace]:
        return [trace for episode in self.episodes for trace in episode.traces]

    def samples(self) -> list[TrainingSample]:
        """Its trainable branches, of any length, with all their tokens."""
        return [
            sample
            for episode in self.episodes
            for trace in eligible_traces([episode])
            for sample in flatten_trace(trace, seq_len=sys.maxsize, episode_id=episode.id).samples
        ]


@dataclass
class Replay:
    """Recorded groups as one algorithm scored them."""

    role: str
    """`algo` or `against`."""
    config: BaseAlgorithmConfig
    groups: list[RecordedGroup]

    @property
    def title(self) -> str:
        return f"{self.role}: {self.config.type}"

    def token_advantages(self) -> Array:
        """f64[N]: of every sampled token of every comparable trace, 0 where there is none."""
        found = [(advantages_of(trace), num_trainable_tokens(trace)) for trace in self._comparable()]
        return np.concatenate([np.zeros(0), *(np.zeros(n) if a is None else a for a, n in found)])

    def token_signal(self) -> Array:
        """f64[N]: the same, times the token's weight in the rl component."""
        weights = [weights_of(trace, RL)[sampled_of(trace)] for trace in self._comparable()]
        return self.token_advantages() * np.concatenate([np.zeros(0), *weights])

    def summary(self) -> dict[str, str]:
        """The row of a table."""
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
    """Let an algorithm score the episodes of groups that train in one step, as the pipeline does."""
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
    """Every recorded group, in the order of the record; signals of the run are taken off.

    Args:
        path: a run folder, or a JSONL file of `braidrl.orchestrator.pipeline.records`. Episodes without a group
            form one each.

    Raises:
        ValueError: nothing is recorded there, or a line that is no episode.
    """
    groups: dict[tuple[str, str], RecordedGroup] = {}
    for source, step, episode in _read(path):
        name = episode.group.id if episode.group else episode.id
        groups.setdefault((source, name), RecordedGroup(source, name, step, [])).episodes.append(episode)
    if not groups:
        raise ValueError(f"{path} holds no recorded episodes; give a run folder, or a file of episodes/train")
    return list(groups.values())


async def replay(role: str, config: BaseAlgorithmConfig, groups: list[RecordedGroup]) -> Replay:
    """Score copies of the groups, those of each source with an algorithm of its own. The groups that ended for one step
    are the batch of an algorithm that waits for one."""
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
    """An episode with nodes of its own, which is all that an algorithm may write on; the rest is shared."""
    traces = [
        trace.model_copy(update={"nodes": [node.model_copy() for node in trace.nodes]})
        for trace in episode.traces
    ]
    return episode.model_copy(update={"traces": traces})


def sampled_of(trace: Trace) -> NDArray[np.bool_]:
    """bool[tokens of the graph], node after node."""
    return np.array([sampled for node in trace.nodes for sampled in node.mask], dtype=np.bool_)


def weights_of(trace: Trace, component: str) -> Array:
    """f64[tokens of the graph]: their weight in a component, where an algorithm left none 1 for rl and 0 otherwise."""
    absent = 1.0 if component == RL else 0.0
    streams = [
        (node.loss_weights or {}).get(component) or [absent] * len(node.token_ids) for node in trace.nodes
    ]
    return np.array([weight for stream in streams for weight in stream], dtype=np.float64)


def advantages_of(trace: Trace) -> Array | None:
    """f64[sampled tokens], node after node; None where no node has any."""
    nodes = list(trainable_nodes(trace))
    if all(node.advantages is None for node in nodes):
        return None
    return np.concatenate([node.advantages or np.zeros(sum(node.mask)) for node in nodes])


def signal_records(replays: list[Replay]) -> Iterator[dict[str, Any]]:
    """One record a trainable branch of a comparable trace: its tokens, and under the role of each algorithm the
    streams that it wrote. Each stream has one value a token of `token_ids`; a shared message counts once."""
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
    """(source, step, episode) of each line."""
    files = sorted((RunFolder(path).train_episodes(0).parent).glob("*.jsonl")) if path.is_dir() else [path]
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    record = msgspec.json.decode(line)
                    known = record.pop("braid", {})
                    source = known.get("env") or record["env"].get("name") or ""
                    yield source, known.get("step", 0), episode_of(record)
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
