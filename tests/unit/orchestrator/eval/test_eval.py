"""Evaluation: estimators against closed forms, and evaluation during training."""

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import verifiers.v1 as vf
from stub_tasks import StubConfig, StubTaskset

from braidrl.configs.eval import EvalConfig, EvalSettings
from braidrl.monitors.metrics import read_metrics
from braidrl.orchestrator.envs.source import FinishedEpisode
from braidrl.orchestrator.eval.summary import Z95, pass_at_k, powers_of_two, reward_of, summarize
from braidrl.report.evaluation import evaluation_table
from braidrl.utils.run_folder import RunFolder
from tests.support.stub_engine import StubEngine
from tests.support.stub_episodes import join, make_episode, make_failure
from tests.support.stub_trainer import run_stub

TASK = next(iter(StubTaskset(StubConfig(id="stub-tasks"))))


def attempts(rewards: Sequence[float | None], task: vf.Task = TASK) -> list[FinishedEpisode]:
    """Return attempts at one task. NaN represents a failed attempt."""
    made = []
    for number, reward in enumerate(rewards):
        key = f"eval/stub/0/{number}"
        failed = reward is not None and math.isnan(reward)
        made.append(make_failure(task, key) if failed else make_episode(task, reward, key))
    return made


@pytest.mark.parametrize(("num", "successes"), [(1, 0), (1, 1), (5, 0), (5, 2), (8, 1), (8, 7), (6, 6)])
def test_pass_at_k_is_the_share_of_choices_that_hold_a_success(num: int, successes: int) -> None:
    results = [True] * successes + [False] * (num - successes)
    for k in range(1, num + 1):
        choices = [any(choice) for choice in itertools.combinations(results, k)]
        assert pass_at_k(num, successes, k) == pytest.approx(np.mean(choices), abs=1e-15)


@pytest.mark.parametrize("k", [1, 2, 4, 16])
def test_pass_at_k_is_unbiased(k: int) -> None:
    """The mean estimate over the binomial number of successes is 1 - (1 - p)^k."""
    num, chance = 16, 0.13
    mean = sum(
        math.comb(num, c) * chance**c * (1 - chance) ** (num - c) * pass_at_k(num, c, k)
        for c in range(num + 1)
    )
    assert mean == pytest.approx(1 - (1 - chance) ** k, abs=1e-12)


def test_pass_at_k_of_thousands_of_attempts_is_exact() -> None:
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01, abs=1e-12)
    assert pass_at_k(10_000, 0, 100) == 0.0
    with pytest.raises(ValueError, match="pass@5 cannot be estimated from 4 attempts; choose k from 1 to 4"):
        pass_at_k(4, 2, 5)


def test_k_is_a_power_of_two_up_to_the_rollouts() -> None:
    assert {limit: [*powers_of_two(limit)] for limit in (1, 2, 3, 8, 12)} == {
        1: [1],
        2: [1, 2],
        3: [1, 2],
        8: [1, 2, 4, 8],
        12: [1, 2, 4, 8],
    }


def test_the_interval_is_that_of_the_means_by_task() -> None:
    """Two perfectly correlated attempts at each of four tasks count as four measurements, not eight."""
    tasks = [attempts([reward, reward]) for reward in (0.0, 0.0, 1.0, 1.0)]
    summary = summarize(tasks, EvalSettings(rollouts_per_task=2))
    assert summary["reward/mean"] == 0.5 and summary["reward/std"] == 0.5
    assert summary["reward/ci95"] == pytest.approx(Z95 * np.std([0, 0, 1, 1], ddof=1) / 2)
    assert summary["pass@1"] == summary["pass@2"] == 0.5
    assert summary["tokens/mean"] == 0 and summary["turns/mean"] == 1
    assert summarize(tasks[:1], EvalSettings())["reward/ci95"] == 0.0


def test_success_is_decided_by_the_threshold_up_to_rounding() -> None:
    tasks = [attempts([0.7 + 0.2 + 0.1, 0.5, 0.4, 0.0])]  # rounding keeps the first reward below 1
    assert 0.7 + 0.2 + 0.1 < 1
    strict = summarize(tasks, EvalSettings(rollouts_per_task=4))
    assert [strict[f"pass@{k}"] for k in (1, 2, 4)] == pytest.approx([1 / 4, 1 / 2, 1])
    loose = summarize(tasks, EvalSettings(rollouts_per_task=4, success_reward=0.5))
    assert [loose[f"pass@{k}"] for k in (1, 2, 4)] == pytest.approx([1 / 2, 5 / 6, 1])


def test_a_failed_attempt_is_not_a_wrong_answer() -> None:
    nan = math.nan
    tasks = [attempts([1.0, 0.0, nan, nan]), attempts([1.0, None, 1.0, 0.0]), attempts([nan] * 4)]
    summary = summarize(tasks, EvalSettings(rollouts_per_task=4))
    assert summary["num"] == 12 and summary["errors"] == 7
    assert summary["reward/mean"] == pytest.approx(3 / 5)
    assert summary["pass@1"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert summary["pass@2"] == 1.0  # any two attempts at either task include a success
    assert "pass@4" not in summary, "no task has four good attempts"
    assert summarize([attempts([nan])], EvalSettings()) == {"num": 1.0, "errors": 1.0}


def test_an_episode_of_several_agents_counts_by_the_mean_of_their_rewards() -> None:
    one, other = attempts([1.0, 0.5])
    assert reward_of(join(one, other)) == 0.75
    broken = join(*attempts([1.0, 0.5]))
    broken.episode.traces[1].rewards["score"] = None
    assert reward_of(broken) is None


def test_a_table_has_a_row_per_source_and_marks_missing_values() -> None:
    parts = {
        "held/out": summarize([attempts([1.0, 0.0])], EvalSettings(rollouts_per_task=2)),
        "dead": summarize([attempts([math.nan])], EvalSettings()),
    }
    metrics = {f"eval/{name}/{key}": value for name, part in parts.items() for key, value in part.items()}
    assert evaluation_table(metrics) == [
        ("source", "reward", "pass@1", "pass@2", "episodes", "errors", "truncated", "tokens"),
        ("held/out", "0.500 ± 0.000", "0.500", "1.000", "2", "0", "0.0%", "0.0"),
        ("dead", "-", "-", "-", "1", "1", "-", "-"),
    ]


def test_sources_inherit_from_their_group_and_load_back() -> None:
    env = {"taskset": {"id": "stub-tasks"}}
    sources = [
        {"env": env, "name": "own", "interval": 3, "rollouts_per_task": 1, "sampling": {"top_p": 0.9}},
        {"env": env, "name": "rare", "interval": "None"},
        {"env": env, "name": "plain"},
    ]
    group = {"interval": 10, "rollouts_per_task": 4, "sampling": {"temperature": 0.5}, "success_reward": 0.9}
    config = EvalConfig.model_validate({**group, "source": sources})
    own, rare, plain = config.source
    assert (own.interval, rare.interval, plain.interval) == (3, None, 10)
    assert (own.rollouts_per_task, plain.rollouts_per_task) == (1, 4)
    assert (own.sampling.temperature, own.sampling.top_p) == (0.5, 0.9)
    assert {source.success_reward for source in config.source} == {0.9}
    assert EvalConfig.model_validate(config.model_dump(mode="json", exclude_none=True)) == config


def stub_source(name: str, **settings: Any) -> dict[str, Any]:
    keys = {key: settings.pop(key) for key in ("slow_tasks", "seconds", "waits_for") if key in settings}
    return {"env": {"taskset": {"id": "stub-tasks", "num_tasks": 3, **keys}}, "name": name, **settings}


def content(batches: Sequence[Any]) -> list[Any]:
    return [
        (sample.group_id, sample.token_ids.tolist(), sample.advantages.tolist())
        for batch in batches
        for sample in batch.samples
    ]


async def test_training_continues_during_an_evaluation(tiny_model_dir: Path, tmp_path: Path) -> None:
    """The evaluation of the base model ends after the first training step, but samples all its tokens from v0."""
    run = RunFolder(tmp_path / "run")
    source = stub_source("held", waits_for=str(run.weights(1)), timeout=60.0)
    evals = {"source": [source], "final": False, "max_concurrent": 2}
    settings = {"max_steps": 2, "max_off_policy_steps": 0}
    with_evals, _ = await run_stub(tiny_model_dir, run.root, eval=evals, **settings)
    without, _ = await run_stub(tiny_model_dir, tmp_path / "without", **settings)
    assert content(with_evals) == content(without)
    (line,) = read_metrics(run.metrics("eval"))
    assert (line["step"], line["eval/held/num"], line["eval/held/errors"]) == (0, 3, 0)
    records = map(json.loads, run.eval_episodes(0).read_text().splitlines())
    calls = [call for record in records for trace in record["braid"]["versions"].values() for call in trace]
    assert len(calls) == 3 and {version for call in calls for version, _ in call} == {0}


async def test_time_in_an_evaluation_does_not_count_against_the_policy(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    evals = {"source": [stub_source("held", slow_tasks=(0,), seconds=1.0)], "final": False}
    settings = {"max_steps": 2, "max_off_policy_steps": 0, "policy_timeout": 0.4}
    batches, _ = await run_stub(tiny_model_dir, tmp_path, eval=evals, **settings)
    assert len(batches) == 2


async def test_each_source_has_an_interval_of_its_own(tiny_model_dir: Path, tmp_path: Path) -> None:
    sources = [stub_source("often"), stub_source("seldom", interval=3)]
    evals = {"interval": 2, "base_model": False, "final": False, "source": sources}
    await run_stub(tiny_model_dir, tmp_path, max_steps=6, eval=evals)
    lines = read_metrics(RunFolder(tmp_path).metrics("eval"))
    seen = {line["step"]: {key.split("/")[1] for key in line if key.endswith("/num")} for line in lines}
    assert seen == {2: {"often"}, 3: {"seldom"}, 4: {"often"}, 6: {"often", "seldom"}}


async def test_an_interrupted_evaluation_is_repeated_on_resume(tiny_model_dir: Path, tmp_path: Path) -> None:
    """A run may resume from a checkpoint that is newer than the version whose evaluation was interrupted."""
    run = RunFolder(tmp_path)
    settings = {"eval": {"interval": 2, "source": [stub_source("held")]}, "checkpoint": {"interval": 1}}
    await run_stub(tiny_model_dir, tmp_path, max_steps=3, **settings)
    whole = read_metrics(run.metrics("eval"))
    assert [line["step"] for line in whole] == [0, 2, 3]
    kept = [json.dumps(line) for line in whole if line["step"] == 0]
    run.metrics("eval").write_text("".join(line + "\n" for line in kept))
    _, engine = await run_stub(tiny_model_dir, tmp_path, max_steps=4, resume_step=3, **settings)
    assert [update["version"] for update in engine.updates] == [2, 3, 4]
    again = read_metrics(run.metrics("eval"))
    assert [line["step"] for line in again] == [0, 2, 4]
    assert again[1]["eval/held/reward/mean"] == whole[1]["eval/held/reward/mean"]


class CountingEngine(StubEngine):
    """Engine that records its maximum number of concurrent generations."""

    peak = 0
    now = 0

    async def _versions(self, count: int) -> list[tuple[int, int]]:
        self.now += 1
        self.peak = max(self.peak, self.now)
        try:
            return await super()._versions(count)
        finally:
            self.now -= 1


async def test_the_concurrency_of_evaluations_is_bounded_on_its_own(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.stub_trainer.StubEngine", CountingEngine)
    evals = {"max_concurrent": 3, "base_model": False, "source": [stub_source("held", rollouts_per_task=4)]}
    settings = {"max_steps": 1, "max_off_policy_steps": 0, "engine": {"latency": 0.05}, "max_concurrent": 2}
    _, engine = await run_stub(tiny_model_dir, tmp_path, eval=evals, **settings)
    assert isinstance(engine, CountingEngine) and engine.peak == 3
    (line,) = read_metrics(RunFolder(tmp_path).metrics("eval"))
    assert line["eval/held/num"] == 12 and line["eval/held/errors"] == 0
