"""Several algorithms in one run: from episodes to one batch of per-token streams, against stub servers."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import renderers.client
from aiohttp import web
from stub_engine import StubEngine
from stub_trainer import orchestrator_config, run_with_stubs

from braidrl.orchestrator.train.algo.reference import ScoringError
from braidrl.transport.types import TrainingBatch, TrainingSample
from braidrl.utils.run_folder import RunFolder
from tests.unit.fake_teacher import FakeTeacher


class ScoringStub(StubEngine):
    """A stub engine that scores prompts: every token at -0.5."""

    async def _generate(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        if "prompt_logprobs" not in body["sampling_params"]:
            return await super()._generate(request)
        scored = [None, *({str(token): {"logprob": -0.5}} for token in body["token_ids"][1:])]
        return web.json_response({"choices": [{"token_ids": [1]}], "prompt_logprobs": scored})


async def run(model: Path, folder: Path, algos: dict[str, Any], **settings: Any) -> list[TrainingBatch]:
    """One run with a source for each algorithm, all on the stub taskset."""
    renderers.client._max_prompt_len_lock = asyncio.Lock()
    sources = [
        {"name": name, "env": {"taskset": {"id": "stub-tasks"}}, "algo": algo} for name, algo in algos.items()
    ]
    train = {"group_size": 4, "sampling": {"max_tokens": 16}, "source": sources}
    async with StubEngine(model=str(model)) as engine:
        config = orchestrator_config(model, folder, engine.url, train=train, **settings)
        return await run_with_stubs(config)


def shipped(batches: list[TrainingBatch]) -> dict[str, list[TrainingSample]]:
    by_env: dict[str, list[TrainingSample]] = {}
    for batch in batches:
        for sample in batch.samples:
            by_env.setdefault(sample.env, []).append(sample)
    return by_env


async def test_three_algorithms_share_batches(tiny_model_dir: Path, tmp_path: Path) -> None:
    async with ScoringStub(model="teacher") as frozen, FakeTeacher().serving() as url:
        algos = {
            "credit": {"type": "grpo"},
            "imitate": {"type": "sft", "sampling": {"source": {"name": "teacher", "base_url": frozen.url}}},
            "distil": {"type": "opd", "teacher": {"name": "teacher", "base_url": url}},
        }
        batches = await run(tiny_model_dir, tmp_path, algos, max_steps=3, batch_size=12)
    by_env = shipped(batches)
    assert by_env.keys() == algos.keys()
    for sample in by_env["credit"]:
        assert sample.advantages is not None
        assert (sample.rl_weights, sample.ce_weights, sample.ref_kl_weights, sample.ref_logprobs) == (
            None,
        ) * 4
    for sample in by_env["imitate"]:
        assert sample.ce_weights.tolist() == sample.mask.tolist()
        assert not sample.rl_weights.any()
        assert (sample.advantages, sample.ref_kl_weights, sample.version_end) == (None, None, 0)
    for sample in by_env["distil"]:
        assert sample.ref_kl_weights.tolist() == sample.mask.tolist()
        expected = [-0.25 * token * trained for token, trained in zip(sample.token_ids.tolist(), sample.mask)]
        assert sample.ref_logprobs.tolist() == expected
        assert not sample.rl_weights.any() and sample.advantages is None
    generated = [body for body in frozen.requests if "token_ids" in body]
    assert generated and all("cache_salt" not in body for body in generated)


async def test_two_frozen_models_of_one_name_are_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    async with ScoringStub(model="teacher") as one, ScoringStub(model="teacher") as two:
        algos = {
            name: {"type": "sft", "sampling": {"source": {"name": "teacher", "base_url": stub.url}}}
            for name, stub in (("first", one), ("second", two))
        }
        with pytest.raises(ValueError, match=r"source 'second', 'teacher', stands at .* serve them under"):
            await run(tiny_model_dir, tmp_path, algos)


async def test_an_episode_whose_teacher_fails_is_recorded_and_left_out(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    answers = 0

    def every_third(answer: dict[str, Any]) -> Any:
        nonlocal answers
        answers += 1
        return "<html>busy</html>" if answers % 3 == 0 else answer

    async with FakeTeacher(edit=every_third).serving() as url:
        algos = {"distil": {"type": "opd", "teacher": {"name": "teacher", "base_url": url}}}
        batches = await run(tiny_model_dir, tmp_path, algos, max_steps=1)
    assert len(batches[0].samples) == 8
    lines = RunFolder(tmp_path).train_episodes(1).read_text().splitlines()
    errors = [error["message"] for line in lines for error in json.loads(line).get("errors", [])]
    assert errors and all("scoring: the reference 'teacher'" in error for error in errors)


async def test_a_teacher_that_is_down_ends_the_run_before_it_starts(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    algo = {
        "type": "opd",
        "teacher": {"name": "teacher", "base_url": "http://127.0.0.1:9/v1"},
        "timeout": 0.3,
    }
    with pytest.raises(ScoringError, match=r"'teacher' at http://127.0.0.1:9 gave no answer within 0.3 s"):
        await run(tiny_model_dir, tmp_path, {"distil": algo})


async def test_baselines_are_in_the_checkpoint(tiny_model_dir: Path, tmp_path: Path) -> None:
    await run(tiny_model_dir, tmp_path, {"play": {"type": "rae"}}, max_steps=1)
    state = json.loads(RunFolder(tmp_path).orchestrator_checkpoint(1).read_bytes())
    (baseline,) = state["envs"]["play"]["algorithm"]["baselines"].values()
    assert 0 < baseline < 1
