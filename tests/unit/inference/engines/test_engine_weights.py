"""Weight updates of the embedded engine: exact, atomic, and with requests in flight."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_helpers import DEADLINE, check_logprobs, generate, running, submit, wait_until
from safetensors.torch import load_file, save_file

from braidrl.inference.engines.weights import WeightsError
from braidrl.utils.tiny_model import create_tiny_model


@pytest.fixture(scope="module")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny model with different weights."""
    return create_tiny_model(tmp_path_factory.mktemp("models") / "other", seed=1)


def test_new_weights_equal_a_fresh_engine(tiny_model_dir: Path, other_weights: Path):
    prompt = list(range(40))
    with running(other_weights) as fresh:
        expected = generate(fresh, prompt, max_tokens=20, seed=3)
    with running(tiny_model_dir) as engine:
        before = generate(engine, prompt, max_tokens=20, seed=3)
        assert engine.update_weights(other_weights, 1).result(DEADLINE) == 1
        after = generate(engine, prompt, max_tokens=20, seed=3)
        assert engine.scheduler.prefix_hits == 0, "a prefix of older weights must not be reused"
    assert after.completion == expected.completion != before.completion
    assert after.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert (before.versions, after.versions) == ([(0, 20)], [(1, 20)])


def test_sequences_in_flight_go_on_under_new_weights(tiny_model_dir: Path, other_weights: Path):
    with running(tiny_model_dir) as engine:
        requests = [submit(engine, list(range(30)), max_tokens=400, seed=seed) for seed in range(3)]
        wait_until(lambda: engine.stats.generated_tokens >= 9, "the first tokens")
        engine.update_weights(other_weights, 7).result(DEADLINE)
        for request in requests:
            request.future.result(DEADLINE)
            (old, before), (new, after) = request.versions
            assert (old, new) == (0, 7) and before > 0 and before + after == 400
            check_logprobs(other_weights, request, start=before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_updated_weights_compute_as_loaded_ones(tiny_model_dir: Path, other_weights: Path, dtype: str):
    with running(other_weights, dtype=dtype) as fresh:
        expected = generate(fresh, [1, 2, 3], max_tokens=16, temperature=0.0)
    with running(tiny_model_dir, dtype=dtype) as engine:
        engine.update_weights(other_weights, 1).result(DEADLINE)
        found = generate(engine, [1, 2, 3], max_tokens=16, temperature=0.0)
    assert found.completion == expected.completion
    assert found.logprobs == expected.logprobs


def _damage(source: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    target.mkdir()
    save_file(tensors, target / "model.safetensors")
    return target


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "1 missing: model.norm.weight"),
        (lambda t: t.update({"extra.weight": torch.zeros(2)}), "1 unknown: extra.weight"),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(3)}),
            r"model.norm.weight \[3\] instead of \[64\]",
        ),
        (lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}), "tied but different"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(
    tiny_model_dir: Path, other_weights: Path, tmp_path: Path, change: Callable, message: str
):
    damaged = _damage(other_weights, tmp_path / "damaged", change)
    with running(tiny_model_dir) as engine:
        before = generate(engine, [1, 2, 3], max_tokens=8, seed=0)
        with pytest.raises(WeightsError, match=message):
            engine.update_weights(damaged, 5).result(DEADLINE)
        after = generate(engine, [1, 2, 3], max_tokens=8, seed=0)
    assert after.completion == before.completion and after.versions == [(0, 8)]


def test_a_tied_head_may_be_sent_along(tiny_model_dir: Path, other_weights: Path, tmp_path: Path):
    both = _damage(
        other_weights,
        tmp_path / "both",
        lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}),
    )
    with running(tiny_model_dir) as engine:
        engine.update_weights(both, 1).result(DEADLINE)
        check_logprobs(other_weights, generate(engine, [1, 2, 3], max_tokens=4))


@pytest.mark.parametrize("content", [None, b"not safetensors"])
def test_unreadable_weights_are_refused(tiny_model_dir: Path, tmp_path: Path, content: bytes | None):
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with running(tiny_model_dir) as engine, pytest.raises(WeightsError, match=str(tmp_path)):
        engine.update_weights(tmp_path, 1).result(DEADLINE)


def test_diverged_weights_fail_requests_and_good_ones_heal(tiny_model_dir: Path, tmp_path: Path):
    nan = _damage(
        tiny_model_dir,
        tmp_path / "nan",
        lambda t: t["model.layers.0.self_attn.v_proj.weight"].fill_(torch.nan),
    )
    with running(tiny_model_dir) as engine:
        engine.update_weights(nan, 1).result(DEADLINE)
        with pytest.raises(FloatingPointError, match="not finite"):
            generate(engine, list(range(40)), max_tokens=3)
        engine.update_weights(tiny_model_dir, 2).result(DEADLINE)
        check_logprobs(tiny_model_dir, generate(engine, [1, 2], max_tokens=5))
