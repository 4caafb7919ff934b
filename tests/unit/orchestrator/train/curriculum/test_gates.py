"""Gates: admission of finished groups, records of rejected ones, and the end of a run that admits none."""

import asyncio
import math
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from braidrl.configs.algorithm import EchoConfig, RAEConfig, SFTDistillConfig
from braidrl.configs.curriculum.gates import BaseGateConfig
from braidrl.configs.orchestrator import CurriculumConfig, OrchestratorConfig
from braidrl.orchestrator.pipeline.no_signal import NoSignalError
from braidrl.orchestrator.pipeline.records import group_records
from braidrl.orchestrator.pipeline.sink import Sink
from braidrl.orchestrator.train.algo import make_algorithm
from braidrl.orchestrator.train.curriculum import AdmissionGate, Curriculum
from braidrl.orchestrator.train.curriculum.rewards import rewards_of
from reverse_text import ReverseTextConfig, ReverseTextTaskset
from tests.support.groups import group_of
from tests.support.stub_episodes import make_episode, make_failure, observe
from tests.unit.orchestrator.pipeline.test_dispatcher import end_all, make_env, open_dispatcher
from tests.unit.orchestrator.pipeline.test_sink import add, fill, make_config, open_group
from tests.unit.orchestrator.pipeline.test_sink import make_env as make_sink_env

RANGE = {"low_signal": {"type": "advantage_range", "reject_min": -0.05, "reject_max": 0.05}}
"""Gates of docs/curricula.md."""
DIFFICULTY = {"difficulty": {"type": "online_difficulty"}}


def curriculum(gates: dict[str, Any]) -> Curriculum:
    taskset = ReverseTextTaskset(ReverseTextConfig(num_tasks=4))
    return Curriculum(CurriculumConfig.model_validate({"gates": gates}), taskset)


def rejecting(
    judging: Curriculum, *rewards: float | None, advantages: tuple[float | None, ...] = ()
) -> list[str]:
    return judging.rejecting(group_of(judging.next_task(), rewards, advantages))


@pytest.mark.parametrize(
    ("advantages", "admitted"),
    [
        ((0.05, -0.05), False),  # both ends are included
        ((0.0, 0.0), False),
        ((0.05, -0.0500001), True),
        ((0.0, 0.5), True),  # one token outside is enough
        ((0.04, None), False),  # a trace without advantages is ignored
        ((None, None), True),  # a group without advantages is admitted
    ],
)
def test_a_group_is_rejected_when_every_advantage_lies_in_the_range(
    advantages: tuple[float | None, ...], admitted: bool
) -> None:
    judging = curriculum(RANGE)
    assert rejecting(judging, 1.0, 0.0, advantages=advantages) == ([] if admitted else ["low_signal"])
    unjudged = advantages == (None, None)
    assert judging.metrics() == {
        "tasks": 1.0,
        "epoch": 0.25,
        "gates/low_signal/judged": 1.0,
        "gates/low_signal/rejected": float(not admitted),
        "gates/low_signal/unjudged": float(unjudged),
    }


def test_a_single_token_outside_the_range_admits() -> None:
    judging = curriculum(RANGE)
    group = group_of(judging.next_task(), [1.0, 0.0], [0.0, 0.0])
    group[1].traces[0].nodes[1].advantages = [0.0, 0.0, 0.3]
    assert judging.rejecting(group) == []


def test_an_advantage_of_a_failed_trace_does_not_count() -> None:
    judging = curriculum(RANGE)
    group = group_of(judging.next_task(), [1.0, math.nan], [0.0, 0.9])
    assert judging.rejecting(group) == ["low_signal"]


@pytest.mark.parametrize(
    ("rewards", "admitted"),
    [
        ((1.0, 1.0), False),  # bounds are exclusive
        ((0.0, 0.0), False),
        ((1.0, 0.0), True),
        ((None, 1.0), False),  # only scored traces count
        ((None, None), False),
    ],
)
def test_a_group_is_admitted_when_its_task_is_neither_solved_nor_hopeless(
    rewards: tuple[float | None, ...], admitted: bool
) -> None:
    assert rejecting(curriculum(DIFFICULTY), *rewards) == ([] if admitted else ["difficulty"])


def test_a_bound_may_be_left_out() -> None:
    judging = curriculum({"unsolved": {"type": "online_difficulty", "above": "None", "below": 0.75}})
    assert [rejecting(judging, mean) for mean in (-3.0, 0.5, 0.75)] == [[], [], ["unsolved"]]


def test_every_gate_judges_and_all_must_admit() -> None:
    judging = curriculum(RANGE | DIFFICULTY)
    assert rejecting(judging, 1.0, 0.0, advantages=(0.5, -0.5)) == []
    assert rejecting(judging, 1.0, 1.0, advantages=(0.5, -0.5)) == ["difficulty"]
    assert rejecting(judging, 1.0, 1.0, advantages=(0.0, 0.0)) == ["low_signal", "difficulty"]
    first, second = judging.metrics(), judging.metrics()
    for name, rejected in (("low_signal", 1.0), ("difficulty", 2.0)):
        assert (first[f"gates/{name}/judged"], first[f"gates/{name}/rejected"]) == (3.0, rejected)
        assert (second[f"gates/{name}/judged"], second[f"gates/{name}/rejected"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ({"type": "advantage_range", "reject_min": 0.1}, r"reject_min \(0.1\) is above reject_max \(0\)"),
        ({"type": "online_difficulty", "above": 1}, "no reward is above 1 and below 1"),
        ({"type": "advantage_range", "reject_mn": 0}, "reject_mn"),
        ({"type": "advantage"}, "online_difficulty"),
    ],
)
def test_a_gate_that_makes_no_sense_is_refused(gate: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        curriculum({"mine": gate})


def test_a_source_adds_gates_changes_them_and_switches_them_off() -> None:
    def gates(**own: Any) -> dict[str, Any]:
        source = {"env": {"taskset": {"id": "reverse-text"}}, "curriculum": {"gates": own}}
        train = {"curriculum": {"gates": RANGE}, "source": [source]}
        config = OrchestratorConfig.model_validate({"model": {"path": "m"}, "train": train})
        again = OrchestratorConfig.model_validate(config.model_dump())
        assert again == config
        return config.model_dump()["train"]["source"][0]["curriculum"]["gates"]

    assert gates() == RANGE
    assert gates(**DIFFICULTY).keys() == {"low_signal", "difficulty"}
    assert gates(low_signal={"reject_max": 0.5})["low_signal"] == {**RANGE["low_signal"], "reject_max": 0.5}
    assert {key: gate for key, gate in gates(low_signal="None").items() if gate != "None"} == {}


class CountingConfig(BaseGateConfig):
    type: Literal["counting"] = "counting"


class Counting(AdmissionGate[CountingConfig]):
    """Gate that admits every second group."""

    seen = 0

    def admits(self, group: Any) -> bool:
        self.seen += 1
        return self.seen % 2 == 0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def test_the_state_of_gates_is_part_of_the_curriculum() -> None:
    first, second = (curriculum({}) for _ in range(2))
    for judging in (first, second):
        judging.gates["every_second"] = Counting(CountingConfig())
    assert rejecting(first, 1.0) == ["every_second"]
    second.load_state_dict(first.state_dict())
    assert rejecting(second, 1.0) == []


def test_a_gate_added_on_resume_starts_from_its_initial_state() -> None:
    first, second = curriculum({}), curriculum(RANGE)
    second.load_state_dict(first.state_dict())
    assert rejecting(second, 1.0, 0.0, advantages=(0.0, 0.0)) == ["low_signal"]


def test_a_gate_that_raises_stops_the_run_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    judging = curriculum(DIFFICULTY)
    monkeypatch.setattr(judging.gates["difficulty"], "admits", lambda group: 1 / 0)
    with pytest.raises(
        RuntimeError, match=r"gate 'difficulty' \(OnlineDifficultyGate\) failed: ZeroDivisionError"
    ):
        rejecting(judging, 1.0)


# -- in the pipeline


def gated(config: OrchestratorConfig, gates: dict[str, Any]) -> OrchestratorConfig:
    config.train.source[0].curriculum = CurriculumConfig.model_validate({"gates": gates})
    return config


@pytest.mark.parametrize("constant", [True, False])
async def test_a_rejected_group_trains_nothing_is_seen_recorded_and_counted(
    constant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = gated(make_config(constant_trainer_batch_size=constant, max_off_policy_steps=1), RANGE)
    sink, env = Sink(config), make_sink_env(config)
    seen: list[list[float]] = []
    monkeypatch.setattr(env.curriculum.sampler, "observe", lambda group: seen.append(rewards_of(group)))
    await add(sink, env, 0, [0.50, 0.58])
    assert sink.buffer.ready == []
    await add(sink, env, 1, [0.5, 0.7])
    assert len(sink.buffer.ready) == 2
    assert seen == [[0.50, 0.58], [0.5, 0.7]]
    assert [record["braid"]["outcome"] for record in group_records(sink.last.groups, 1)] == [
        "rejected"
    ] * 2 + ["signal"] * 2
    metrics = sink.take_metrics()
    assert (metrics["groups/done"], metrics["groups/rejected"], metrics["groups/no_signal"]) == (2, 1, 0)
    assert env.curriculum.metrics()["gates/low_signal/rejected"] == 1


async def test_groups_too_small_to_compare_keep_that_name_and_broken_ones_are_not_judged() -> None:
    config = gated(make_config(), RANGE)
    sink, env = Sink(config), make_sink_env(config)
    for index, survivors in enumerate((1, 0)):
        group = open_group(index, env)
        alive = [make_episode(group.task, 1.0, f"{index}/{n}") for n in range(survivors)]
        await fill(sink, group, [*alive, *(make_failure(group.task, "x") for _ in range(2 - survivors))])
    assert [outcome for _, outcome in sink.last.groups] == ["too_few"] * 2
    assert env.curriculum.metrics()["gates/low_signal/judged"] == 1


async def test_a_rejected_group_trains_no_observations_either() -> None:
    config = gated(make_config(), DIFFICULTY)
    sink, env = Sink(config), make_sink_env(config)
    env.source, env.algorithm = (
        env.source.model_copy(update={"algo": EchoConfig()}),
        make_algorithm(EchoConfig()),
    )
    for index, rewards in enumerate(([1.0, 1.0], [1.0, 0.0])):
        group = open_group(index, env)
        await fill(sink, group, [observe(make_episode(group.task, r, f"{index}/{r}")) for r in rewards])
    assert {trace.group.index for trace in sink.buffer.ready} == {1}


async def test_credit_of_the_batch_is_not_there_when_gates_judge() -> None:
    """Without advantages, `advantage_range` admits, and `online_difficulty` judges the mean reward."""
    for gates, buffered in ((RANGE, 2), (DIFFICULTY, 0)):
        config = gated(make_config(), gates)
        sink, env = Sink(config), make_sink_env(config)
        env.source, env.algorithm = (
            env.source.model_copy(update={"algo": RAEConfig()}),
            make_algorithm(RAEConfig()),
        )
        await add(sink, env, 0, [1.0, 1.0])
        assert len(sink.buffer.ready) == buffered


async def test_where_no_sibling_is_awaited_each_episode_is_a_group() -> None:
    teacher = {"source": {"name": "teacher", "base_url": "http://127.0.0.1:9/v1"}}
    algo = SFTDistillConfig.model_validate({"sampling": teacher})
    config = gated(make_config(), {"good": {"type": "online_difficulty", "above": 0.5, "below": None}})
    sink, env = Sink(config), make_sink_env(config)
    env.source, env.algorithm = env.source.model_copy(update={"algo": algo}), make_algorithm(algo)
    for number, reward in enumerate((1.0, 0.25)):
        group = open_group(0, env)
        group.numbers = (number,)
        episode = make_episode(group.task, reward, f"0/{number}")
        await sink.arrive(group, number, episode)
        await sink.complete(group)
    assert [trace.episode.traces[0].reward for trace in sink.buffer.ready] == [1.0]
    assert [outcome for _, outcome in sink.last.groups] == ["signal", "rejected"]


async def test_gates_that_reject_everything_end_the_run_and_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = gated(make_config(max_empty_batches=2), DIFFICULTY | RANGE)
    sink, env = Sink(config), make_sink_env(config)
    for index in range(3):
        await add(sink, env, index, [0.52, 0.48] if index else [1.0, 1.0])
    with pytest.raises(NoSignalError) as caught:
        await add(sink, env, 3, [0.52, 0.48])
    message = str(caught.value)
    assert "100% were rejected by gates: low_signal (4 groups), difficulty (1 groups)" in message
    assert "too easy" not in message
    assert any("low_signal" in line for line in caplog.messages)  # and a warning preceded it


async def test_rejected_groups_are_replaced_by_the_next_tasks() -> None:
    env = make_env()
    env.curriculum = Curriculum(CurriculumConfig.model_validate({"gates": RANGE}), env.env.taskset)
    env.rewards = {"stub-000000": (0.5, 0.58)}
    async with open_dispatcher(env) as (dispatcher, _):
        collecting = asyncio.create_task(dispatcher.collect(1))
        await end_all(env)
        assert list(env.open) == ["stub-000002/0", "stub-000002/1"]
        await end_all(env)
        batch = await asyncio.wait_for(collecting, 5.0)
        assert [trace.group.index for trace in batch.traces] == [1, 1, 2, 2]
