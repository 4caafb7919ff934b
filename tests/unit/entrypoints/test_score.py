"""Offline replay: recorded episodes, scored again without a model."""

import asyncio
import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stub_trainer import run_stub
from verifiers.v1 import Episode

from braidrl.cli import main
from braidrl.configs.algorithm import BaseAlgorithmConfig, GRPOConfig, RAEConfig
from braidrl.orchestrator.pipeline.records import append_records
from braidrl.orchestrator.train.algo import ALGORITHM_CLASSES, Algorithm
from braidrl.orchestrator.train.rescore import read_groups, replay, signal_records
from braidrl.transport.types import TrainingBatch
from tests.support.episodes import episode, trace


def record(path: Path, *episodes: Episode, env: str = "sums") -> Path:
    """Append episodes to a file as a run records them."""
    records = [played.to_record(float_decimals=None) | {"braid": {"env": env}} for played in episodes]
    append_records(path, records)
    return path


def group(name: str, *rewards: float | None) -> list[Episode]:
    return [episode(trace(reward), group=name) for reward in rewards]


def rows(text: str) -> dict[str, dict[str, list[str]]]:
    """Parse the printed groups: the cells of each row, by group and row label."""
    shown: dict[str, dict[str, list[str]]] = {}
    for block in text.split("\n\n"):
        title, *lines = block.splitlines()
        cells = [re.split(r"  +", line.strip()) for line in lines if line.startswith("  ")]
        shown[title] = {name: values for name, *values in cells}
    return shown


def test_two_algorithms_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "e.jsonl", *group("a", 1.0, 0.0, 0.0, 0.0), *group("b", 0.5, 0.5))
    output = tmp_path / "signals.jsonl"
    flags = ["--algo.type", "max_rl", "--against.type", "grpo", "--output", str(output)]
    assert main(["score", str(path), *flags]) == 0
    text = capsys.readouterr().out
    assert rows(text)["sums a"] == {
        "reward": ["1", "0", "0", "0"],
        "algo: max_rl": ["+3", "-1", "-1", "-1"],
        "against: grpo": ["+0.75", "-0.25", "-0.25", "-0.25"],
    }
    assert rows(text)["sums b"]["algo: max_rl"] == ["0", "0"]
    summary = [re.split(r"  +", line) for line in text.splitlines() if line.startswith(("algo:", "against:"))]
    assert summary == [  # mean of |A| over 6 traces of 3 tokens, 12 of which have some
        ["algo: max_rl", "2", "50.0%", "1", "12", "0"],
        ["against: grpo", "2", "50.0%", "0.25", "12", "0"],
    ]
    assert "of 18 sampled tokens: correlation 1.0000, same sign on 100.0%" in text
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(lines) == 6
    assert lines[0]["algo"] == {"type": "max_rl", "advantages": [0, 0, 3, 3, 3]}
    assert lines[0]["against"] == {"type": "grpo", "advantages": [0, 0, 0.75, 0.75, 0.75]}
    assert (lines[0]["group"], lines[0]["token_ids"], lines[0]["reward"]) == ("a", [10, 11, 10, 11, 12], 1.0)


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        ("group_mean", ["+0.5", "-0.5"]),
        ("group_zscore", ["+0.707", "-0.707"]),
        ("batch_mean", ["+0.25", "-0.75"]),
        ("batch_zscore", ["+0.5", "-1.5"]),
        ("none", ["+1", "0"]),
    ],
)
def test_rewards_are_measured_against_group_or_batch(
    norm: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recorded episodes of a step form a batch: two groups with the rewards 1, 0 and 1, 1."""
    path = record(tmp_path / "e.jsonl", *group("a", 1.0, 0.0), *group("b", 1.0, 1.0))
    assert main(["score", str(path), "--algo.advantage_norm", norm]) == 0
    assert rows(capsys.readouterr().out)["sums a"]["algo: grpo"] == expected


def test_ce_weights_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Observation tokens of ECHO are shown with their weight. A group without advantages still trains them."""
    talks = [("user", 2), ("assistant", 3), ("tool", 4), ("assistant", 1)]
    played = [episode(trace(1.0, roles), group="sums-1") for roles in (talks, talks[:2])]
    path = record(tmp_path / "e.jsonl", *played)
    assert main(["score", str(path), "--algo.type", "echo", "--against.type", "grpo"]) == 0
    text = capsys.readouterr().out
    assert rows(text)["sums-1"] == {
        "reward": ["1", "1"],
        "algo: echo": ["0", "0"],
        "ce weights": ["4 x 0.1", "-"],
        "against: grpo": ["0", "0"],
    }
    assert "echo     1       0.0%            0                    0          4" in text
    assert "correlation undefined, because one of them is constant" in text


def test_weights_within_the_rl_loss_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two settings with the same advantages but different weights have different signals."""
    long = [("user", 2), ("assistant", 9)]
    path = record(tmp_path / "e.jsonl", *group("a", 1.0, 0.0))
    record(path, episode(trace(1.0, long), group="b"), episode(trace(0.0, long), group="b"))
    flags = ["--algo.loss_aggregation", "prompt", "--against.type", "grpo"]
    assert main(["score", str(path), *flags]) == 0
    text = capsys.readouterr().out
    assert rows(text)["sums a"]["rl weights"] == ["3 x 0.167", "3 x 0.167"]
    assert rows(text)["sums b"]["rl weights"] == ["9 x 0.0556", "9 x 0.0556"]
    assert rows(text)["sums b"]["algo: grpo"] == rows(text)["sums b"]["against: grpo"] == ["+0.5", "-0.5"]
    assert "of 24 sampled tokens: correlation 0.8660, same sign on 100.0%" in text  # sqrt(3) / 2


def test_agents_and_excluded_traces_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hands = [
        episode(trace(reward, agent="player0"), trace(-reward, agent="player1"), group="sums-1")
        for reward in (1.0, 2.0)
    ]
    hands[1].traces[1].agent.trainable = False
    assert main(["score", str(record(tmp_path / "e.jsonl", *hands)), "--algo.type", "rae"]) == 0
    assert rows(capsys.readouterr().out)["sums-1"] == {
        "agent": ["player0", "player1"] * 2,
        "reward": ["1", "-1", "2", "-2"],
        "left out": ["not_trainable"],
        "algo: rae": ["+1", "-1", "+1.95", "-"],
    }


def test_show_limits_the_printed_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(
        tmp_path / "e.jsonl", *(played for number in range(7) for played in group(f"sums-{number}", 1, 0))
    )
    for show, numbers in ((3, [0, 3, 6]), (1, [0]), (0, []), (9, range(7))):
        assert main(["score", str(path), "--show", str(show)]) == 0
        text = capsys.readouterr().out
        assert re.findall(r"^sums-(\d)$", text, re.MULTILINE) == [str(number) for number in numbers]
        assert (f"{show} of 7 groups, evenly spread; --show 7 prints all." in text) == (0 < show < 7)
        assert "algo: grpo  7 " in text


def test_each_source_has_its_own_algorithm_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "e.jsonl", *group("a", 1.0, 1.0))
    record(path, *group("b", 1.0), env="poker")
    assert main(["score", str(path), "--algo.type", "rae", "--algo.decay", "0.5"]) == 0
    text = capsys.readouterr().out
    assert rows(text)["sums a"]["algo: rae"] == ["+1", "+0.5"]
    assert rows(text)["poker b"]["algo: rae"] == ["+1"]
    assert main(["score", str(path), "--source", "poker"]) == 0
    assert "sums" not in capsys.readouterr().out


def test_incomparable_traces_are_excluded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = episode(trace(1.0, ok=False), group="a")
    path = record(tmp_path / "e.jsonl", *group("a", 1.0, math.nan, math.inf, None, 0.0), failed)
    assert main(["score", str(path)]) == 0
    shown = rows(capsys.readouterr().out)["sums a"]
    assert shown["reward"] == ["1", "nan", "nan", "0", "0", "1"]
    assert shown["left out"] == ["nonfinite_reward", "nonfinite_reward", "no_reward", "error"]
    assert shown["algo: grpo"] == ["+0.5", "-", "-", "-", "-0.5", "-"]


def test_recorded_signal_is_removed(tmp_path: Path) -> None:
    played = episode()
    played.traces[0].nodes[1].advantages = [7.0] * 3
    played.traces[0].nodes[1].loss_weights = {"ce": [1.0] * 3}
    (recorded,) = read_groups(record(tmp_path / "e.jsonl", played))
    (_, node) = recorded.traces[0].nodes
    assert (node.advantages, node.loss_weights, node.logprobs) == (None, None, [-0.5] * 3)


@pytest.mark.parametrize("config", [GRPOConfig(), RAEConfig()], ids=lambda config: config.type)
async def test_replay_reproduces_the_signal_of_a_run(
    config: BaseAlgorithmConfig, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """The advantages of a replay are those that were sent to the trainer."""
    source = {"name": "stub", "env": {"taskset": {"id": "stub-tasks"}}, "algo": {"type": config.type}}
    train = {"group_size": 4, "sampling": {"max_tokens": 16}, "source": [source]}
    batches, _ = await run_stub(tiny_model_dir, tmp_path, max_steps=2, train=train)
    lines = signal_records([await replay("algo", config, read_groups(tmp_path))])
    replayed = {(line["trace"], tuple(line["algo"]["advantages"])) for line in lines}
    assert replayed >= shipped(batches) > set()


def shipped(batches: list[TrainingBatch]) -> set[tuple[str, tuple[float, ...]]]:
    return {
        (sample.trace_id, tuple(sample.advantages.tolist()))
        for batch in batches
        for sample in batch.samples
        if sample.advantages is not None
    }


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--algo.type", "opd"], "algo: opd calls a served model"),
        (["--against.type", "opsd"], "against: opsd calls a served model"),
        (["--algo.type", "sft"], "choose one of grpo, max_rl, rae, hierarchical_grpo, echo"),
        (["--algo.type", "hierarchical_grpo"], "has no agent 'solver', only 'agent'"),
        (["--algo.typ", "grpo"], "algo.typ: unknown key"),
        (["--source", "nobody"], "has no episode of source 'nobody'; it has episodes of 'sums'"),
        (["--output", "{folder}/e.jsonl"], "e.jsonl exists; choose a new file"),
    ],
)
def test_errors_are_one_line(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = record(tmp_path / "e.jsonl", *group("a", 1.0, 0.0))
    assert main(["score", str(path), *(flag.format(folder=tmp_path) for flag in flags)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"a": 1}\n', b"[1]\n", msgspec.json.encode({"traces": [{}]})]
)
def test_invalid_recordings_are_rejected(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e.jsonl").write_bytes(content)
    for path in (tmp_path / "e.jsonl", tmp_path, tmp_path / "nowhere"):
        assert main(["score", str(path)]) == 2
        error: Any = capsys.readouterr().err
        assert error.startswith("braid score: error: episodes: ") and error.count("\n") == 1


def test_score_batch_receives_the_groups_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    class Watches(Algorithm[RAEConfig]):
        async def score_batch(self, episodes: list[Episode]) -> None:
            seen.append([played.group.id for played in episodes])

    monkeypatch.setitem(ALGORITHM_CLASSES, "rae", Watches)
    records = [
        played.to_record(float_decimals=None) | {"braid": {"env": env, "step": step}}
        for env, step, name in (("a", 1, "a1"), ("b", 1, "b1"), ("a", 1, "a2"), ("a", 2, "a3"))
        for played in group(name, 1.0, 0.0)
    ]
    append_records(tmp_path / "e.jsonl", records)
    groups = read_groups(tmp_path / "e.jsonl")
    replayed = asyncio.run(replay("algo", RAEConfig(), groups))
    assert seen == [["a1", "a1", "a2", "a2"], ["b1", "b1"], ["a3", "a3"]]
    assert [recorded.id for recorded in replayed.groups] == ["a1", "b1", "a2", "a3"]
