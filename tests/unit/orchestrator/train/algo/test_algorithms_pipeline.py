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

from braidrl.orchestrator.pipeline.no_signal import NoSignalError
from braidrl.orchestrator.train.algo.reference import ScoringError
from braidrl.transport.types import TrainingBatch, TrainingSample
from braidrl.utils.run_folder import RunFolder
from tests.support.fake_teacher import FakeTeacher
from tests.unit.orchestrator.test_orchestrator import content


class ScoringStub(StubEngine):
    """Stub engine that scores every prompt token at -0.5."""

    async def _generate(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        if "prompt_logprobs" not in body["sampling_params"]:
            return await super()._generate(request)
        scored = [None, *({str(token): {"logprob": -0.5}} for token in body["token_ids"][1:])]
        return web.json_response({"choices": [{"token_ids": [1]}], "prompt_logprobs": scored})


async def run(model: Path, folder: Path, algos: dict[str, Any], **settings: Any) -> list[TrainingBatch]:
    """Run one source per algorithm on the stub taskset. `env` sets its keys."""
    renderers.client._max_prompt_len_lock = asyncio.Lock()
    taskset = {"id": "stub-tasks", **settings.pop("env", {})}
    sources = [
        {"name": name, "env": {"taskset": taskset}, "algo": algo, "timeout": 60.0}
        for name, algo in algos.items()
    ]
    train = {"group_size": settings.pop("group_size", 4), "sampling": {"max_tokens": 16}, "source": sources}
    resume_step = settings.pop("resume_step", None)
    async with StubEngine(model=str(model)) as engine:
        config = orchestrator_config(model, folder, engine.url, train=train, **settings)
        return await run_with_stubs(config, resume_step)


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
        with pytest.raises(ValueError, match=r"source 'second', 'teacher', is at .* serve them under"):
            await run(tiny_model_dir, tmp_path, algos)


class FaultyTeacher(FakeTeacher):
    """Teacher that works until the run has started, then fails every n-th score."""

    def __init__(self, fault: str, every: int) -> None:
        super().__init__()
        self.fault, self.every, self.scored = fault, every, -1

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.scored += request.path != "/tokenize"
        if self.scored < 1 or self.scored % self.every:
            return await super().answer(request)
        match self.fault:
            case "down":
                return web.Response(status=503, text="not here")
            case "slow":
                await asyncio.sleep(60.0)
            case "refuses":
                return web.Response(status=400, text="too long")
        return web.Response(text="<html>busy</html>")


def distil(url: str, **settings: Any) -> dict[str, Any]:
    return {"distil": {"type": "opd", "teacher": {"name": "teacher", "base_url": url}, **settings}}


@pytest.mark.parametrize("fault", ["slow", "refuses", "garbage"])
async def test_an_episode_whose_teacher_fails_is_recorded_and_left_out(
    tiny_model_dir: Path, tmp_path: Path, fault: str
) -> None:
    async with FaultyTeacher(fault, every=3).serving() as url:
        batches = await run(tiny_model_dir, tmp_path, distil(url, timeout=2.0), max_steps=1)
    assert len(batches[0].samples) == 8
    lines = [json.loads(line) for line in RunFolder(tmp_path).train_episodes(1).read_text().splitlines()]
    errors = [error["message"] for line in lines for error in line.get("errors", [])]
    assert errors and all("scoring: the reference 'teacher'" in error for error in errors)
    failed = {trace["id"] for line in lines if line.get("errors") for trace in line["traces"]}
    assert len(failed) == len(errors)
    assert not failed & {sample.trace_id for sample in batches[0].samples}


async def test_a_teacher_that_is_down_for_a_moment_costs_no_episode(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    async with FaultyTeacher("down", every=3).serving() as url:
        batches = await run(tiny_model_dir, tmp_path, distil(url), max_steps=1)
    assert len(batches[0].samples) == 8
    lines = [json.loads(line) for line in RunFolder(tmp_path).train_episodes(1).read_text().splitlines()]
    assert [line["ok"] for line in lines] == [True] * 8


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("down", r"did not answer within 2 s \(last seen: .* answered 503: not here\)"),
        ("slow", "did not answer within 2 s .*still processing the request"),
        ("garbage", "cannot be decoded .*<html>busy"),
    ],
)
async def test_a_teacher_that_stays_down_ends_the_run_with_the_reason(
    tiny_model_dir: Path, tmp_path: Path, fault: str, reason: str
) -> None:
    async with FaultyTeacher(fault, every=1).serving() as url:
        with pytest.raises(
            NoSignalError, match=f"(?s)ScoringError: scoring: the reference 'teacher'.*{reason}"
        ):
            await run(tiny_model_dir, tmp_path, distil(url, timeout=2.0), max_empty_batches=1)


async def test_a_teacher_that_is_down_ends_the_run_before_it_starts(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    algo = {
        "type": "opd",
        "teacher": {"name": "teacher", "base_url": "http://127.0.0.1:9/v1"},
        "timeout": 0.3,
    }
    with pytest.raises(ScoringError, match=r"'teacher' at http://127.0.0.1:9 did not answer within 0.3 s"):
        await run(tiny_model_dir, tmp_path, {"distil": algo})


# -- credit in dispatch order


def baseline_of(folder: Path, step: int) -> float:
    state = json.loads(RunFolder(folder).orchestrator_checkpoint(step).read_bytes())
    (baseline,) = state["envs"]["play"]["algorithm"]["baselines"].values()
    return baseline


def follow(batches: list[TrainingBatch]) -> tuple[list[float], float]:
    """Return the advantages of these samples in order, and the baseline after the last one."""
    baseline, advantages = 0.0, []
    for sample in (sample for batch in batches for sample in batch.samples):
        advantages.append(sample.reward - baseline)
        baseline = 0.95 * baseline + 0.05 * sample.reward
    return advantages, baseline


async def test_baselines_follow_the_order_of_dispatch_whatever_the_timing(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    algos, slow = {"play": {"type": "rae"}}, {"slow_tasks": (0, 2, 4), "seconds": 0.3}
    quick = await run(tiny_model_dir, tmp_path / "quick", algos, max_steps=3)
    late = await run(tiny_model_dir, tmp_path / "late", algos, max_steps=3, env=slow)
    assert [content(batch) for batch in quick] == [content(batch) for batch in late]
    advantages, baseline = follow(quick)
    assert [float(s.advantages[-1]) for batch in quick for s in batch.samples] == pytest.approx(advantages)
    assert baseline_of(tmp_path / "quick", 3) == baseline_of(tmp_path / "late", 3) == pytest.approx(baseline)


async def test_baselines_of_four_steps_equal_two_and_two_more(tiny_model_dir: Path, tmp_path: Path) -> None:
    algos, slow = {"play": {"type": "rae"}}, {"slow_tasks": (0, 5), "seconds": 0.2}
    whole = await run(tiny_model_dir, tmp_path / "whole", algos, max_steps=4)
    first = await run(tiny_model_dir, tmp_path / "parts", algos, max_steps=2, env=slow)
    second = await run(tiny_model_dir, tmp_path / "parts", algos, max_steps=4, resume_step=2)
    assert [content(batch) for batch in whole] == [content(batch) for batch in first + second]
    assert baseline_of(tmp_path / "whole", 4) == baseline_of(tmp_path / "parts", 4) != 0


async def test_a_checkpoint_of_baselines_holds_the_episodes_of_its_batches_alone(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    settings = {"max_steps": 3, "max_off_policy_steps": 2, "checkpoint": {"interval": 1}}
    slow = {"slow_tasks": (0, 3), "seconds": 0.3}
    batches = await run(tiny_model_dir, tmp_path, {"play": {"type": "rae"}}, env=slow, **settings)
    for step in (1, 2, 3):
        assert baseline_of(tmp_path, step) == pytest.approx(follow(batches[:step])[1])


# -- barrier "episode"


def tokens(batches: list[TrainingBatch]) -> list[tuple[str, list[int]]]:
    return [(sample.group_id, sample.token_ids.tolist()) for batch in batches for sample in batch.samples]


async def test_a_resumed_run_trains_the_episodes_that_were_left_of_a_task(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Tasks of three episodes do not fill a batch of eight, so each checkpoint is in the middle of a task."""
    slow = {"slow_tasks": (0, 2, 4), "seconds": 0.2}
    async with FakeTeacher().serving() as url:
        settings = {"algos": distil(url), "group_size": 3}
        whole = await run(tiny_model_dir, tmp_path / "whole", max_steps=4, env=slow, **settings)
        first = await run(tiny_model_dir, tmp_path / "parts", max_steps=2, **settings)
        second = await run(tiny_model_dir, tmp_path / "parts", max_steps=4, resume_step=2, **settings)
    assert tokens(whole) == tokens(first + second)
    assert [group for group, _ in tokens(whole)] == [f"distil-{number // 3:06d}" for number in range(32)]
