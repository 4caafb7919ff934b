"""Learning criteria of the examples, measured on the outputs of their runs and on the trained policies."""

import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from braidrl.monitors.metrics import read_metrics
from braidrl.report.rewards import eval_episodes, heldout_rewards
from braidrl.utils.run_folder import RunFolder
from commands import serving
from measure import ASSISTANT, expected_rewards, exploitability, nll

LAST_STEPS = 3
"""Number of final steps over which a metric is averaged."""
GAIN = 0.15
"""Gain in expected held-out reward at which curricula are compared."""


@dataclass(frozen=True)
class Measure:
    """A value before and after training. `learnt` is True if the change meets the criterion."""

    name: str
    before: float
    after: float
    learnt: bool


Criterion = Callable[[Path], list[Measure]]
"""Function that measures one example and seed. The argument is the folder in which its commands ran."""


def reward_up(run: Path, source: str = "heldout") -> Measure:
    """Require a higher mean held-out reward at the end, with 95% intervals that do not overlap."""
    evaluated = heldout_rewards(RunFolder(run), source)
    first, last = evaluated[0], evaluated[-1]
    separated = last.mean - last.ci95 > first.mean + first.ci95
    return Measure(f"reward, {source}", first.mean, last.mean, separated)


def reward_near(
    run: Path, teacher: Path, source: str = "heldout", teacher_source: str = "heldout"
) -> Measure:
    """Require that the mean held-out reward closes more than half of the initial gap to the teacher."""
    rewards = heldout_rewards(RunFolder(run), source)
    first, last = rewards[0].mean, rewards[-1].mean
    goal = heldout_rewards(RunFolder(teacher), "heldout")[-1].mean
    return Measure(f"reward, {source} (teacher: {goal:.3f})", first, last, last - first > (goal - first) / 2)


def metric_up(run: Path, metric: str, source: str = "heldout") -> Measure:
    """Require a higher value of an environment metric on held-out tasks."""
    rows = read_metrics(RunFolder(run).metrics("eval"))
    first, last = (float(row[f"eval/{source}/metric/{metric}"] or 0.0) for row in (rows[0], rows[-1]))
    return Measure(f"{metric}, {source}", first, last, last > first)


def reward_holds(run: Path, source: str) -> Measure:
    """Require that the mean held-out reward falls by less than a tenth."""
    evaluated = heldout_rewards(RunFolder(run), source)
    first, last = evaluated[0].mean, evaluated[-1].mean
    return Measure(f"reward, {source}", first, last, last > 0.9 * first)


def halved(run: Path, metric: str) -> Measure:
    """Require that a trainer metric, averaged over the last steps, is less than half its first value."""
    rows = read_metrics(RunFolder(run).metrics("trainer"))
    values = [float(value) for row in rows if (value := row.get(metric)) is not None]
    first, last = values[0], float(np.mean(values[-LAST_STEPS:]))
    return Measure(metric, first, last, last < first / 2)


def fell(name: str, before: float, after: float, to_less_than: float = 1.0) -> Measure:
    """Require that a value is less than `to_less_than` times its initial value."""
    return Measure(name, before, after, after < to_less_than * before)


def signal_groups(run: Path) -> float:
    """Return the mean number of groups with a training signal per step."""
    rows = read_metrics(RunFolder(run).metrics("orchestrator"))
    return float(np.mean([value for row in rows if (value := row.get("groups/signal")) is not None]))


def expected_curve(run: Path, base_url: str, start: str) -> dict[int, float]:
    """Return the expected held-out reward of an `arithmetic` run by step, for the initial and all saved weights.

    The server at `base_url` serves the initial weights `start` under that name. It serves other weights afterwards.
    """
    folder = RunFolder(run)
    data = [record["task"]["data"] for record in eval_episodes(folder, 0).values()]
    steps = folder.published("weights")
    rewards = expected_rewards(
        base_url,
        start,
        [Path(start), *(folder.weights(step).resolve() for step in steps)],
        [(task["prompt"], str(task["answer"])) for task in data],
    )
    return dict(zip([0, *steps], rewards, strict=True))


def steps_to_gain(curve: dict[int, float], gain: float = GAIN) -> float:
    """Return the number of steps until the reward is `gain` above its initial value, by linear interpolation.

    The keys of `curve` are ascending. Infinity if the reward is never reached.
    """
    goal = curve[0] + gain
    for (before, below), (after, reward) in pairwise(curve.items()):
        if reward >= goal:
            return before + (after - before) * (goal - below) / (reward - below)
    return math.inf


@contextmanager
def served(model: Path, log: Path) -> Iterator[tuple[str, str]]:
    """Serve a policy with `braid inference` and yield its address and name."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [
        "inference",
        "--model.path",
        str(model),
        "--port",
        str(port),
        "--output-dir",
        str(log.with_suffix("")),
    ]
    with serving(words, model.parent, log) as base_url:
        yield base_url, str(model)


def weights(run: Path) -> Path:
    """Return the folder of a run's final weights."""
    folder = RunFolder(run)
    return folder.weights(folder.published("weights")[-1]).resolve()


def text_nll(model: Path, episodes: Path, role: str, log: Path) -> float:
    """Return the mean NLL under a policy of this role's messages in recorded episodes."""
    with served(model, log) as (base_url, name):
        return nll(base_url, name, episodes, {role})[0]


def kuhn_exploitability(model: Path, log: Path) -> float:
    """Return the exploitability of a policy in Kuhn poker."""
    with served(model, log) as (base_url, name):
        return exploitability(base_url, name)


def rae(folder: Path) -> list[Measure]:
    outputs = folder / "outputs" / "rae"
    before, after = (
        kuhn_exploitability(weights(outputs / part), folder / f"rae.{part}.log") for part in ("warmup", "rl")
    )
    return [fell("exploitability of the final policy", before, after, to_less_than=0.5)]


def hierarchical_grpo(folder: Path) -> list[Measure]:
    run = folder / "outputs" / "hierarchical_grpo" / "rl"
    return [reward_up(run), metric_up(run, "valid"), metric_up(run, "solved")]


def echo(folder: Path) -> list[Measure]:
    outputs = folder / "outputs" / "echo"
    plain_run = RunFolder(outputs / "grpo")
    episodes = plain_run.eval_episodes(plain_run.published("weights")[-1])
    plain, predicting = (
        text_nll(weights(outputs / run), episodes, "user", folder / f"echo.{run}.log")
        for run in ("grpo", "rl")
    )
    return [
        reward_up(outputs / "rl"),
        fell("NLL of observations, plain grpo -> echo", plain, predicting),
    ]


def opd(folder: Path) -> list[Measure]:
    outputs = folder / "outputs"
    return [
        halved(outputs / "opd" / "rl", "ref_kl"),
        reward_near(outputs / "opd" / "rl", outputs / "grpo" / "rl"),
    ]


def multi_teacher_opd(folder: Path) -> list[Measure]:
    run = folder / "outputs" / "multi_teacher_opd" / "rl"
    measures: list[Measure] = []
    for source in ("short", "long"):
        measures += [halved(run, f"ref_kl/env/{source}"), reward_up(run, source)]
    return measures


def opsd(folder: Path) -> list[Measure]:
    run = folder / "outputs" / "opsd" / "rl"
    return [halved(run, "ref_kl"), reward_up(run), reward_holds(run, "helped")]


def sft(folder: Path) -> list[Measure]:
    teacher = RunFolder(folder / "outputs" / "grpo" / "rl")
    episodes = teacher.eval_episodes(teacher.published("weights")[-1])
    student = folder / "outputs" / "grpo" / "warmup", folder / "outputs" / "sft" / "rl"
    before, after = (
        text_nll(weights(run), episodes, ASSISTANT, folder / f"sft.{run.name}.log") for run in student
    )
    return [fell("NLL of held-out teacher text", before, after), reward_up(student[1])]


def difficulty_pool(folder: Path) -> list[Measure]:
    outputs = folder / "outputs" / "difficulty_pool"
    plain, pools = outputs / "standard", outputs / "rl"
    with served(weights(outputs / "warmup"), folder / "difficulty_pool.policies.log") as (base_url, start):
        curves = [expected_curve(run, base_url, start) for run in (plain, pools)]
    return pools_ahead(curves[0], curves[1], signal_groups(plain), signal_groups(pools))


def pools_ahead(
    plain: dict[int, float], pools: dict[int, float], plain_groups: float, pool_groups: float
) -> list[Measure]:
    """Require that difficulty pools learn in fewer steps than source order, with more than twice the groups with
    signal."""
    slow, fast = steps_to_gain(plain), steps_to_gain(pools)
    compared = "source order -> pools"
    return [
        Measure(f"steps to an expected reward {GAIN} up, {compared}", slow, fast, fast < slow),
        Measure(
            f"groups with signal a step, {compared}",
            plain_groups,
            pool_groups,
            pool_groups > 2 * plain_groups,
        ),
    ]


def only_reward(name: str, *sources: str) -> Criterion:
    """Return the criterion of an example whose reward must rise on each of the evaluation sources."""
    return lambda folder: [reward_up(folder / "outputs" / name / "rl", source) for source in sources]


CRITERIA: dict[str, Criterion] = {
    "grpo": only_reward("grpo", "heldout"),
    "max_rl": only_reward("max_rl", "heldout"),
    "rae": rae,
    "hierarchical_grpo": hierarchical_grpo,
    "echo": echo,
    "opd": opd,
    "opsd": opsd,
    "sft": sft,
    "multi_teacher_opd": multi_teacher_opd,
    "difficulty_pool": difficulty_pool,
    "mixed": only_reward("mixed", "short", "guessing", "long"),
}
"""Learning criterion of each example."""
