"""Helpers of the tests of the embedded engine."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from braidrl.configs.inference import InferenceConfig
from braidrl.configs.model import ModelConfig
from braidrl.inference.engines.request import Completion
from braidrl.inference.engines.sampling import SamplingParams
from braidrl.inference.engines.torch import TorchEngine

DEADLINE = 60.0


@contextmanager
def running(path: Path, **settings: Any) -> Iterator[TorchEngine]:
    dtype = settings.pop("dtype", "float32")
    settings = {"seq_len": 512, "max_batch_size": 8, "prefill_tokens": 64, "threads": 1, **settings}
    engine = TorchEngine(InferenceConfig(model=ModelConfig(path=str(path), dtype=dtype), **settings))
    engine.start()
    engine.loaded.result(DEADLINE)
    yield engine
    engine.close()


def submit(engine: TorchEngine, prompt: list[int], **params: Any) -> Completion:
    request = engine.request(prompt, SamplingParams(**params), id="test", eos=False)
    engine.submit(request)
    return request


def generate(engine: TorchEngine, prompt: list[int], **params: Any) -> Completion:
    return submit(engine, prompt, **params).future.result(DEADLINE)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE} s for {what}"
        time.sleep(0.001)


def plain_logprobs(path: Path, tokens: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Return log-probs f32[T - 1, V] of a plain forward; row t describes token t + 1."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        return (model(torch.tensor([tokens])).logits[0, :-1] / temperature).log_softmax(-1)


def check_logprobs(path: Path, request: Completion, start: int = 0) -> None:
    """Assert that the reported log-probs from generated token `start` on equal those of a plain forward."""
    logprobs = plain_logprobs(path, request.tokens, request.params.temperature or 1.0)
    first = len(request.prompt) - 1 + start
    expected = logprobs[range(first, len(logprobs)), request.tokens[first + 1 :]]
    assert len(request.logprobs) == len(request.completion) > start
    torch.testing.assert_close(torch.tensor(request.logprobs[start:]), expected, atol=1e-4, rtol=0)


def save_scaled(model: Path, folder: Path, factor: float) -> None:
    """Return the weights of a model times a factor."""
    scaled = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        for parameter in scaled.parameters():
            parameter.mul_(factor)
    scaled.save_pretrained(folder)
