"""Evaluation, export and resuming from a path, with the commands of the CLI."""

import contextlib
import io
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from braidrl.cli import main
from commands import serving
from tests.support.runs import Launch

pytestmark = pytest.mark.slow

STEPS = 3
EVALUATION = """
[checkpoint]
interval = 1
keep_last = 1
keep_every = 2
[orchestrator.eval]
interval = 2
num_tasks = 4
rollouts_per_task = 4
success_reward = 0.05
sampling.max_tokens = 12
[[orchestrator.eval.source]]
env.taskset.id = "reverse-text"
name = "held"
[[orchestrator.eval.source]]
env.taskset.id = "arithmetic"
name = "sums"
interval = 3
"""
TIMES = ("seconds", "seconds/mean")


def braid(folder: Path, *args: str, code: int = 0) -> str:
    """Run a command in `folder`, in this process, and return its output."""
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        assert main(list(args)) == code, printed.getvalue()
    return printed.getvalue()


def figures(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of metrics without values that depend on the clock."""
    return {name: value for name, value in line.items() if not name.endswith(TIMES)}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [
        figures(json.loads(line)) for line in (folder / "metrics" / "eval.jsonl").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Launch:
    """Run of three steps with evaluations."""
    made = Launch(tmp_path_factory.mktemp("evaluated"), tiny_model_dir)
    made.config.write_text(made.config.read_text() + EVALUATION)
    made.finish("--max_steps", str(STEPS))
    return made


@pytest.fixture(scope="module")
def server(launch: Launch) -> Iterator[tuple[str, str]]:
    """Address and name of a server of the final policy."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = ["inference", "--model.path", str(launch.run.weights(STEPS)), "--port", port, "--seq-len", "96"]
    folder = launch.folder
    with serving([*words, "--output-dir", str(folder / "served")], folder, folder / "served.log") as url:
        yield url, words[2]


def test_a_run_shows_and_records_its_evaluations(launch: Launch) -> None:
    rows = {line["step"]: line for line in lines(launch.run.root)}
    assert list(rows) == [0, 2, 3]
    assert "eval/sums/num" not in rows[2] and "eval/sums/num" in rows[3]
    for row in rows.values():
        assert row["eval/held/num"] == 16 and row["eval/held/errors"] == 0
        assert row["eval/held/pass@1"] <= row["eval/held/pass@2"] <= row["eval/held/pass@4"]
    assert rows[0]["eval/held/pass@4"] > 0
    output = launch.output.read_text()
    for version, row in rows.items():
        shown = output.split(f"evaluation of v{version}\n")[1].splitlines()
        assert shown[0].split() == [
            "source",
            "reward",
            "pass@1",
            "pass@2",
            "pass@4",
            "episodes",
            "errors",
            "truncated",
            "tokens",
        ]
        assert shown[1].split()[:2] == ["held", f"{row['eval/held/reward/mean']:.3f}"]


def test_what_is_kept_is_what_was_asked_for(launch: Launch) -> None:
    assert launch.run.checkpoints() == launch.run.published("checkpoints") == [2, 3]
    assert launch.run.published("weights") == [2, 3]


def test_an_evaluation_by_itself_equals_that_of_the_run(launch: Launch) -> None:
    """From the newest weights, and from a checkpoint whose published weights have been deleted."""
    expected = {line["step"]: line for line in lines(launch.run.root)}
    output = braid(launch.folder, "eval", "--model.path", "run", "--output_dir", "alone")
    assert lines(launch.folder / "alone") == [expected[3]]
    assert f"held    {expected[3]['eval/held/reward/mean']:.3f} ± " in output
    copy = launch.folder / "copy"
    shutil.copytree(launch.run.root, copy)
    shutil.rmtree(copy / "weights")
    braid(launch.folder, "eval", "--model.path", "copy", "--step", "2", "--output_dir", "from_checkpoint")
    (line,) = lines(launch.folder / "from_checkpoint")
    assert {name: line[name] for name in expected[2]} == expected[2]


def test_a_server_that_runs_gives_the_same(launch: Launch, server: tuple[str, str]) -> None:
    url, name = server
    sources = json.dumps([{"env": {"taskset": {"id": "reverse-text"}}, "name": "held"}])
    words = ["--client.base_url", url, "--model.path", name, "--source", sources, "--seq_len", "96"]
    words += [
        "--num_tasks",
        "4",
        "--rollouts_per_task",
        "4",
        "--success_reward",
        "0.05",
        "--sampling.max_tokens",
        "12",
    ]
    render = ["--renderer.name", "qwen3", "--renderer.enable_thinking", "false"]
    braid(launch.folder, "eval", *words, *render, "--output_dir", "served_tokens")
    (line,) = lines(launch.folder / "served_tokens")
    expected = lines(launch.run.root)[-1] | {"step": 0}
    assert line == {name: expected[name] for name in line}


def test_a_server_that_dies_ends_the_evaluation(launch: Launch) -> None:
    broken = launch.folder / "broken"
    shutil.copytree(launch.run.weights(STEPS), broken)
    (broken / "model.safetensors").write_bytes(b"torn")
    sources = json.dumps([{"env": {"taskset": {"id": "reverse-text"}}, "num_tasks": 2}])
    words = ["--model.path", str(broken), "--source", sources, "--output_dir", "dead"]
    output = braid(launch.folder, "eval", *words, code=1)
    assert "inference ended with exit code 1; last lines of" in output and "safetensors" in output.lower()


@pytest.mark.parametrize(
    "source", ["checkpoints/step_000002", "checkpoints/step_000003", "weights/step_000003"]
)
def test_exported_policies_are_the_published_ones(launch: Launch, tmp_path: Path, source: str) -> None:
    """FIELD_CASES 44: plain transformers can load it, tied embeddings included."""
    braid(launch.folder, "export", str(Path("run") / source), str(tmp_path / "out"))
    step = int(source[-1])
    ids = torch.arange(40, 72)[None]
    theirs, ours = (
        AutoModelForCausalLM.from_pretrained(folder)(ids).logits
        for folder in (launch.run.weights(step), tmp_path / "out")
    )
    assert torch.equal(theirs, ours)
    out = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert out.lm_head.weight is out.model.embed_tokens.weight


def test_another_run_goes_on_from_a_checkpoint(launch: Launch, tiny_model_dir: Path) -> None:
    fork = Launch(launch.folder / "fork", tiny_model_dir)
    fork.config.write_text(launch.config.read_text())
    output = fork.finish("--max_steps", "4", "--resume", str(launch.run.checkpoint(2)))
    assert "continuing after step 2" in output
    assert [row["step"] for row in fork.rows("trainer")] == [3, 4]
    assert [line["step"] for line in lines(fork.run.root)] == [2, 3, 4]
    assert lines(fork.run.root)[0] == lines(launch.run.root)[1], (
        "the policy that it goes on from is the same one"
    )
    assert launch.run.checkpoints() == [2, 3], "the first run stays as it is"
