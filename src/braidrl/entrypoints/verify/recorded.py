"""Recorded batches for `braid verify`: a published batch, or recorded episodes, which are credited again."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.orchestrator import TrainSourceConfig
from braidrl.configs.rl import RLConfig
from braidrl.orchestrator.train.algo.routing import eligible_traces
from braidrl.orchestrator.train.rescore import RecordedGroup, read_groups, replay
from braidrl.orchestrator.train.samples import drop_zero_signal, flatten_trace
from braidrl.packing import Normalisers
from braidrl.transport.types import TrainingSample, decode_batch

FLAG = "--batch"


def read_batch(config: RLConfig, path: Path) -> tuple[list[TrainingSample], str]:
    """Return the samples at `path` and a description of their origin.

    Args:
        path: a file of `batches`, a run folder (its newest step), or a JSONL file of its `episodes/train`. Episodes are
            credited by the algorithms of `config`.

    Raises:
        ConfigError: there is no batch at `path`, or no token of it trains with this config.
    """
    try:
        if path.suffix == ".msgpack":
            samples, origin = decode_batch(path.read_bytes()).samples, str(path)
        else:
            samples, origin = asyncio.run(_credited(config, path))
        normalisers = Normalisers.of(samples)
    # The decoder's array hook raises ValueError, IndexError or KeyError for bytes that are not an array.
    except (OSError, msgspec.MsgspecError, ValueError, LookupError) as error:
        raise error if isinstance(error, ConfigError) else ConfigError(FLAG, f"{path}: {error}") from error
    if not any((normalisers.rl, normalisers.ce, normalisers.ref_kl)):
        raise ConfigError(
            FLAG,
            f"{path}: none of the {len(samples)} samples has a token to train; choose another step, or omit {FLAG}",
        )
    return samples, origin


def check_fits(samples: Sequence[TrainingSample], config: RLConfig, vocabulary: int) -> None:
    """Raise `ConfigError` if the samples do not fit the model, `seq_len` or the loss."""
    largest = max(int(sample.token_ids.max()) for sample in samples)
    if largest >= vocabulary:
        raise ConfigError(
            FLAG,
            f"contains token id {largest}, but {config.model.path} has a vocabulary of {vocabulary}; set --model.path "
            "to the model that sampled it",
        )
    longest = max(len(sample.token_ids) for sample in samples)
    if longest > config.seq_len:
        raise ConfigError(
            FLAG, f"contains a sample of {longest} tokens, but seq_len is {config.seq_len}; raise seq_len"
        )
    if config.trainer.loss.head_size is not None:
        for index, sample in enumerate(samples):
            rl = sample.mask if sample.rl_weights is None else sample.rl_weights
            if np.any(rl) and sample.head_ids is None:
                raise ConfigError(
                    FLAG,
                    f"sample {index} has no top candidates, which trainer.loss.score_centering requires and recorded "
                    f"episodes do not contain; give a file of batches that contains them, or omit {FLAG}",
                )


async def _credited(config: RLConfig, path: Path) -> tuple[list[TrainingSample], str]:
    """Return the samples of the newest recorded step, scored by the algorithm of each source, and their origin."""
    groups = read_groups(path)
    newest = max(group.step for group in groups)
    sources = {source_name(source): source for source in config.orchestrator.train.source}
    samples: list[TrainingSample] = []
    left_out: list[str] = []
    for name in dict.fromkeys(group.source for group in groups if group.step == newest):
        source = sources.get(name)
        if source is None or source.algo.needs_model:
            left_out.append(repr(name))
            continue
        own = [group for group in groups if (group.source, group.step) == (name, newest)]
        scored = await replay(name, source.algo, own)
        samples += [sample for group in scored.groups for sample in _samples(group, source, config.seq_len)]
    origin = f"step {newest} of {path}"
    if left_out:
        origin += f" without {', '.join(left_out)} (no such source, or its algorithm queries a served model)"
    return samples, origin


def _samples(group: RecordedGroup, source: TrainSourceConfig, seq_len: int) -> Iterator[TrainingSample]:
    """Yield the samples of a group as the orchestrator publishes them."""
    for episode in group.episodes:
        for trace in eligible_traces([episode]):
            flattened = flatten_trace(
                trace,
                seq_len=seq_len,
                temperature=source.sampling.temperature,
                env=group.source,
                group_id=group.id,
                episode_id=episode.id,
            )
            for sample in flattened.samples:
                if (kept := drop_zero_signal(sample)) is not None:
                    yield kept


def source_name(source: TrainSourceConfig) -> str:
    """Return the name of a source in a run: its `name`, or the name of its environment in verifiers."""
    taskset, env = (source.env.get("taskset") or {}).get("id", ""), source.env.get("id", "")
    return source.name or (f"{env}+{taskset}" if taskset and env else taskset or env)
