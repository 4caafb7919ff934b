"""Examples are complete: the configs of all commands exist, and an earlier command creates every loaded model."""

import json
import shlex
import socket
from pathlib import Path

import pytest

from braidrl.configs.core.load import load_config
from braidrl.configs.inference import InferenceConfig
from braidrl.configs.plugins import ALGORITHMS, BUILT_IN
from braidrl.configs.rl import RLConfig
from braidrl.configs.sft import SFTConfig
from braidrl.utils.run_folder import RunFolder
from check import NEEDS, Results, describe, passed, table
from commands import SEEDED, commands, play
from criteria import CRITERIA, Measure, halved, reward_up
from tests.support.paths import EXAMPLES

NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/README.md"))
CONFIGS = {"sft": SFTConfig, "rl": RLConfig, "inference": InferenceConfig}


def models_of(name: str) -> list[str]:
    """Return the models that an example creates, in order. Fails if a command loads a model that does not exist yet."""
    made = [model for needed in NEEDS.get(name, []) for model in models_of(needed)]
    for line in commands(name):
        command, *args = shlex.split(line)[1:]
        if command == "tiny-model":
            made.append(args[0])
            continue
        config = load_config(CONFIGS[command], [arg for arg in args if arg != "&"])
        assert config.model.path in made, f"{name}: {line} loads {config.model.path}, which nothing made"
        if command != "inference":
            run = RunFolder(config.output_dir)
            assert str(config.output_dir).startswith(f"outputs/{name}/")
            made.append(str(run.weights(config.max_steps)))
    return made


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_an_example_follow_each_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    assert models_of(name)
    assert any(shlex.split(line)[1] in SEEDED for line in commands(name))


def test_every_algorithm_has_an_example_and_a_criterion() -> None:
    built_in = {name for name, algorithm in ALGORITHMS.items() if algorithm.origin == BUILT_IN}
    assert built_in <= set(NAMES)
    assert built_in <= CRITERIA.keys() <= set(NAMES)


def example(folder: Path, *lines: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("\n".join(["```bash", *lines, "```", ""]))
    return folder.parent


def test_a_command_that_fails_ends_the_example_with_its_log(tmp_path, monkeypatch) -> None:
    lines = ("braid new-algorithm mine --folder outputs/bad/mine", "braid sft @ nothing.toml")
    monkeypatch.setattr("commands.EXAMPLES", example(tmp_path / "examples" / "bad", *lines))
    with pytest.raises(
        RuntimeError, match=r"(?s)braid sft @ nothing.toml --seed 3 ended with exit code 2:.*nothing\.toml"
    ):
        play("bad", tmp_path / "run", seed=3)
    assert (tmp_path / "run" / "outputs" / "bad" / "mine").is_dir()


def test_a_server_that_ends_is_told(tmp_path, monkeypatch) -> None:
    line = "braid inference --no_such_key 1 --port 8099 &"
    monkeypatch.setattr("commands.EXAMPLES", example(tmp_path / "examples" / "bad", line))
    with pytest.raises(RuntimeError, match="the server at port 8099 ended with"):
        play("bad", tmp_path / "run", seed=0)


def test_a_port_that_is_taken_is_told(tmp_path, monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = f"braid inference --model.path nothing --port {port} &"
        monkeypatch.setattr("commands.EXAMPLES", example(tmp_path / "examples" / "bad", line))
        with pytest.raises(RuntimeError, match=f"port {port} is in use"):
            play("bad", tmp_path / "run", seed=0)


def test_only_braid_commands_are_played(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("commands.EXAMPLES", example(tmp_path / "examples" / "bad", "rm -r outputs"))
    with pytest.raises(ValueError, match="must contain only `braid` commands"):
        commands("bad")


def write_metrics(run: Path, process: str, rows: list[dict]) -> None:
    path = RunFolder(run).metrics(process)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"step": step, **row}) + "\n" for step, row in enumerate(rows)))


def test_what_counts_as_learnt(tmp_path: Path) -> None:
    write_metrics(tmp_path, "trainer", [{"ref_kl": value} for value in (4.0, 3.0, 1.0, 2.0, 2.4)])
    assert halved(tmp_path, "ref_kl") == Measure("ref_kl", 4.0, pytest.approx(1.8), True)
    rewards = [{"eval/heldout/reward/mean": mean, "eval/heldout/reward/ci95": 0.1} for mean in (0.3, 0.45)]
    write_metrics(tmp_path, "eval", rewards)
    assert reward_up(tmp_path) == Measure("reward, heldout", 0.3, 0.45, False)


def test_results_are_kept_and_shown(tmp_path: Path) -> None:
    measures = [{"name": "reward", "before": 0.25, "after": 0.5, "learnt": True}]
    row = {"example": "grpo", "seed": 0, "seconds": 99.6, "measures": measures}
    slow = {**row, "seed": 1, "seconds": 301.0}
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(slow) + "\n")
    results = Results(tmp_path)
    assert results.get("grpo", 0) == row
    assert [passed(each) for each in results.rows.values()] == [True, False]
    assert describe(row) == "learnt: grpo, seed 0, 100 s: reward 0.250 -> 0.500"
    assert "| `grpo` | reward | 0.250 -> 0.500 | 0.250 -> 0.500 | 100, 301 |" in table(results.rows)
