"""Inputs of `braid verify`: the batch to differentiate, and tokens sampled by the embedded engine."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from transformers.utils.logging import disable_progress_bar

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.rl import RLConfig
from braidrl.entrypoints.verify.recorded import check_fits, read_batch
from braidrl.inference.engines.request import Completion
from braidrl.inference.engines.sampling import SamplingParams
from braidrl.inference.engines.torch import TorchEngine
from braidrl.orchestrator.train.topk import TopK, num_candidates, recover_head
from braidrl.transport.types import TrainingSample

GROUPS = ("rl", "rl + ce", "ref_kl", "ce")
"""Loss components of each synthetic group. In `rl + ce`, sampled tokens are in rl and prompt tokens in ce."""
SIBLINGS = 3
"""Samples per synthetic group."""
MAX_LENGTH = 96
"""Maximum length of a synthetic sample in tokens, if `seq_len` allows it."""
DRIFT = 0.3
"""Standard deviation, in nats, of the noise on synthetic log-probs of the sampler and the old policy. Without it, no
ratio would reach a mask or clip of the loss."""
MAX_PROMPTS = 12
"""Maximum number of prompts of a recorded batch from which the engine samples."""
MAX_TOKENS = 64
"""Maximum number of tokens sampled per prompt of a recorded batch."""


@dataclass(frozen=True)
class VerifyInputs:
    """Inputs of the checks."""

    samples: list[TrainingSample]
    """Batch whose gradient is computed."""
    sampled: list[TrainingSample]
    """Samples of the embedded engine with the current weights, and its log-probs."""
    origin: str
    """Description of the origin of the batch, for the report."""


@contextmanager
def serving(config: RLConfig) -> Iterator[TorchEngine]:
    """Run the embedded engine with the configured model. Raises `ConfigError` if it cannot serve the model."""
    disable_progress_bar()
    # Errors that the engine logs are also raised here.
    logging.getLogger(TorchEngine.__module__).setLevel(logging.CRITICAL)
    engine = TorchEngine(config.inference)
    engine.start()
    try:
        try:
            engine.loaded.result()
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError("model", f"the engine cannot serve {config.model.path}: {reason}") from error
        _start_from_adapter(engine, config)
        yield engine
    finally:
        engine.close()


def _start_from_adapter(engine: TorchEngine, config: RLConfig) -> None:
    """Load the adapter that the trainer starts from, if any. Raises `ConfigError`."""
    if config.trainer.lora is None or config.trainer.lora.path is None:
        return
    try:
        engine.update_weights(config.trainer.lora.path, 0).result()
    except ValueError as error:
        raise ConfigError("trainer.lora.path", str(error)) from error


def make_inputs(config: RLConfig, path: Path | None) -> VerifyInputs:
    """Return a synthetic batch, or the recorded one at `path`, with tokens that the engine samples for its prompts."""
    recorded, origin = (None, "") if path is None else read_batch(config, path)
    with serving(config) as engine:
        if recorded is None:
            sampled = synthetic(engine, config)
            return VerifyInputs(assign_credit(sampled, config.seed), sampled, "a synthetic batch")
        check_fits(recorded, config, engine.model.vocab_size)
        return VerifyInputs(recorded, sample_again(engine, config, recorded), origin)


def synthetic(engine: TorchEngine, config: RLConfig) -> list[TrainingSample]:
    """Sample groups of siblings on random prompts, with lengths from one token to the maximum.

    The first two samples of a group are branches of one trace. The last sample of the last group is omitted, so that
    ranks have different numbers of rows.
    """
    rng = np.random.default_rng(config.seed)
    temperatures = sorted({source.sampling.temperature for source in config.orchestrator.train.source})
    longest = min(MAX_LENGTH, config.seq_len)
    requests: list[Completion] = []
    for group in range(len(GROUPS)):
        prompt = rng.integers(engine.model.vocab_size, size=max(1, longest * (group + 1) // 8)).tolist()
        for length in np.linspace(1, longest - len(prompt), SIBLINGS).astype(int).tolist():
            temperature = temperatures[group % len(temperatures)]
            requests.append(request(engine, config, prompt, length, temperature, len(requests)))
    samples = list(finished(engine, requests[:-1], config))
    for index, sample in enumerate(samples):
        group, sibling = divmod(index, SIBLINGS)
        sample.env, sample.group_id = f"synthetic-{group}", f"{group}"
        sample.trace_id, sample.branch = f"{group}-{max(0, sibling - 1)}", int(sibling == 1)
    return samples


def sample_again(
    engine: TorchEngine, config: RLConfig, recorded: Sequence[TrainingSample]
) -> list[TrainingSample]:
    """Sample completions of the prompts of a recorded batch, at their temperatures, with the current weights.

    The log-probs in the recording are from other weights, so they cannot be compared with those of the trainer.
    """
    prompts = {tuple(prompt_of(sample)): sample.temperature for sample in recorded}
    evenly = np.linspace(0, len(prompts) - 1, min(len(prompts), MAX_PROMPTS)).astype(int)
    chosen = [list(prompts.items())[index] for index in evenly]
    requests = [
        request(
            engine, config, list(prompt), min(MAX_TOKENS, config.seq_len - len(prompt)), temperature, index
        )
        for index, (prompt, temperature) in enumerate(chosen)
    ]
    return list(finished(engine, requests, config))


def prompt_of(sample: TrainingSample) -> list[int]:
    """Return the tokens before the first sampled one, or all but the last if none is sampled."""
    first = int(sample.mask.argmax()) if sample.mask.any() else len(sample.token_ids) - 1
    return sample.token_ids[: max(1, first)].tolist()


def request(
    engine: TorchEngine, config: RLConfig, prompt: list[int], length: int, temperature: float, seed: int
) -> Completion:
    head = config.trainer.loss.head_size
    params = SamplingParams(
        temperature=temperature,
        max_tokens=length,
        seed=config.seed + seed,
        logprobs=0 if head is None else num_candidates(head),
    )
    return engine.request(prompt, params, id=f"verify-{seed}", eos=False)


def finished(
    engine: TorchEngine, requests: Sequence[Completion], config: RLConfig
) -> Iterator[TrainingSample]:
    """Run the requests and yield the results as samples without credit."""
    head = config.trainer.loss.head_size
    for future in [engine.submit(each) for each in requests]:
        done = future.result()
        mask = np.arange(len(done.tokens)) >= len(done.prompt)
        logprobs = np.zeros(len(done.tokens), np.float32)
        logprobs[mask] = done.logprobs
        found = None if head is None else head_of(done, head)
        yield TrainingSample(
            token_ids=np.array(done.tokens, np.int32),
            mask=mask,
            sampling_logprobs=logprobs,
            temperature=done.params.temperature,
            head_ids=found and found.token_ids,
            head_logprobs=found and found.logprobs,
        )


def head_of(done: Completion, size: int) -> TopK:
    """Return the top candidates of each sampled token of a finished request."""
    width = max(len(each.token_ids) for each in done.candidates)
    ids = np.full((len(done.candidates), width), -1, np.int32)
    logprobs = np.full((len(done.candidates), width), -np.inf)
    for row, each in enumerate(done.candidates):
        ids[row, : len(each.token_ids)], logprobs[row, : len(each.token_ids)] = each
    return recover_head(ids, logprobs, size)


def assign_credit(sampled: Sequence[TrainingSample], seed: int) -> list[TrainingSample]:
    """Return the samples with random credit in the components of their group, and log-probs of an older sampler."""
    rng = np.random.default_rng(seed)
    samples = []
    for sample in sampled:
        kind, length = GROUPS[int(sample.group_id)], len(sample.token_ids)
        noise, distance = DRIFT * rng.standard_normal((2, length))
        rl = {"rl": 1.0, "rl + ce": 0.5}.get(kind, 0.0)
        ce = {"ce": sample.mask, "rl + ce": ~sample.mask & (np.arange(length) > 0)}.get(kind)
        credited = msgspec.structs.replace(
            sample,
            sampling_logprobs=np.where(sample.mask, sample.sampling_logprobs + noise, 0).astype(np.float32),
            advantages=np.where(sample.mask, rng.standard_normal(), 0).astype(np.float32),
            rl_weights=(rl * sample.mask).astype(np.float32),
            ce_weights=None if ce is None else (0.5 * ce).astype(np.float32),
            ref_kl_weights=sample.mask.astype(np.float32) if kind == "ref_kl" else None,
            ref_logprobs=np.where(sample.mask, sample.sampling_logprobs + distance, 0).astype(np.float32),
        )
        samples.append(credited)
    return samples
