"""Environments from Python objects, and runs started from Python, up to the start of their processes."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import braidrl
from braidrl.api.config import read
from braidrl.api.start import open_folder, options_of
from braidrl.configs.core.errors import ConfigError, ConfigErrors
from braidrl.configs.core.load import to_toml
from braidrl.configs.rl import RLConfig
from braidrl.entrypoints import rl
from braidrl.launch.run import resolved_toml
from braidrl.utils.run_folder import RunFolder
from tests.support.environments import play, tasks
from tests.support.scripted_model import ScriptedModel

ROWS: list[dict[str, Any]] = [
    {"prompt": "1 + 1?", "answer": 2, "system_prompt": "Count."},
    {"prompt": [{"role": "user", "content": "2 + 2?"}], "answer": 4},
]


def config_of(folder: Path, *sources: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {
        "model": {"path": folder / "model"},
        "output_dir": folder / "run",
        "orchestrator": {"train": {"source": list(sources)}},
    } | keys


async def rewarded(folder: Path, environment: braidrl.Environment, reply: str, number: int = 0) -> Any:
    """Run one task, in which the model answers `reply`, as a run would. Return its trace."""
    environment.write(folder)
    block = environment.block(folder)
    task = tasks(**{"taskset_id" if key == "id" else key: value for key, value in block["taskset"].items()})[
        number
    ]
    return (await play(ScriptedModel(reply), block, task)).traces[0]


def test_importing_braidrl_loads_nothing_heavy() -> None:
    code = "import sys, braidrl; heavy = {'torch', 'verifiers', 'pydantic'} & set(sys.modules); assert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert callable(braidrl.run)
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        braidrl.runn  # noqa: B018


async def test_reward_receives_the_arguments_it_names(tmp_path: Path) -> None:
    seen_by_parent: list[Any] = []

    def right(completion: str, answer: int) -> bool:
        seen_by_parent.append(answer)  # another process's copy
        return completion == str(answer)

    trace = await rewarded(tmp_path, braidrl.environment(ROWS, right), "2")
    assert trace.reward == 1.0
    assert seen_by_parent == []

    async def whole(prompt: Any, completion: str, **fields: Any) -> float:
        assert fields.pop("trace").last_reply == completion
        assert prompt == [{"role": "user", "content": "2 + 2?"}] and fields["answer"] == 4
        return 0.25

    trace = await rewarded(tmp_path / "other", braidrl.environment(ROWS, whole), "four", number=1)
    assert (trace.reward, trace.ok) == (0.25, True)


@pytest.mark.parametrize("value", ["None", "'1'", "float('nan')", "[1.0]", "1 / 0"])
async def test_failing_reward_fails_its_episode(tmp_path: Path, value: str) -> None:
    reward = eval(f"lambda completion: {value}")
    trace = await rewarded(tmp_path, braidrl.environment(["a"], reward), "2")
    assert not trace.ok
    expected = "division by zero" if value == "1 / 0" else "must return a finite number"
    assert expected in trace.errors[-1].message


def test_invalid_prompts_and_rewards_raise() -> None:
    good = lambda completion: 0.0
    for prompts, reward, message in (
        ([], good, "there are none"),
        (["a", ""], good, r"prompts\[1\]: got ''; expected a string"),
        ([{"question": "a"}], good, "a dict with a prompt"),
        ([{"prompt": "a", "trace": 1}], good, "the field name 'trace' is reserved"),
        ([{"prompt": "a", "answer": {1}}], good, "cannot be written as JSON"),
        (
            [ROWS[0], "b"],
            lambda completion, answer: 0.0,
            r"requires the argument 'answer', which prompts\[1\] does not provide",
        ),
        (["a"], lambda completion, /: 0.0, "requires the argument 'completion'"),
        (["a"], 3, "cannot read the signature of 3"),
    ):
        with pytest.raises(ConfigError, match=message):
            braidrl.environment(prompts, reward)  # type: ignore[arg-type]


def test_unpicklable_reward_raises_before_anything_is_written(tmp_path: Path) -> None:
    file = (tmp_path / "log").open("w")
    environment = braidrl.environment(["a"], lambda completion: float(file.write(completion)))
    with pytest.raises(ConfigError, match="open them inside the function"):
        read(config_of(tmp_path, {"env": environment}))
    file.close()
    assert not (tmp_path / "run").exists()


def test_environments_become_plain_config_in_the_run_folder(tmp_path: Path) -> None:
    first = braidrl.environment(["a", "b"], lambda completion: 0.0)
    second = braidrl.environment(["c"], lambda completion: 1.0)
    sources = [{"name": "first", "env": first}, {"name": "second", "env": second}]
    sources.append({"name": "words", "env": {"taskset": {"id": "reverse-text"}}})
    given = config_of(tmp_path, *sources)
    given["orchestrator"]["eval"] = {"source": [{"name": "heldout", "env": first}]}
    config, run, done = open_folder(read(given), options_of(False, False, False, False))
    assert done == 0 and run.root == tmp_path / "run"
    again = RLConfig.model_validate(json.loads(config.model_dump_json(exclude_none=True)))
    assert to_toml(again) == to_toml(config)
    blocks = [source.env["taskset"] for source in config.orchestrator.train.source]
    assert config.orchestrator.eval.source[0].env["taskset"] == blocks[0]
    assert [len(tasks("jsonl", **{**block, "id": "jsonl"})) for block in blocks[:2]] == [2, 1]
    assert {path.name for path in (run.root / "environments").iterdir()} == {"0", "1"}


def test_saved_config_runs_in_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = braidrl.environment(["a"], lambda completion: 0.0)
    config, run, _ = open_folder(read(config_of(tmp_path, {"env": environment})), options_of(*[False] * 4))
    run.configs.mkdir()
    (run.configs / "rl.toml").write_text(resolved_toml(config))
    flags = ["--output-dir", str(tmp_path / "again"), "--seed", "3", "--dry-run"]
    assert rl.main(["@", str(run.configs / "rl.toml"), *flags]) == 0
    again = RLConfig.model_validate(tomllib.loads(capsys.readouterr().out))
    assert again.trainer.output_dir == again.output_dir == tmp_path / "again"
    assert again.orchestrator.train.source == config.orchestrator.train.source


def test_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    environment = braidrl.environment(["a"], lambda completion: 0.0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("x")
    with pytest.raises(ConfigError, match="already contains a run"):
        braidrl.run(config_of(tmp_path, {"env": environment}))
    with pytest.raises(
        ConfigErrors, match=r"trainer\.optim\.lrr: unknown key; did you mean 'trainer\.optim\.lr'"
    ):
        braidrl.run(config_of(tmp_path, {"env": environment}, trainer={"optim": {"lrr": 1}}), clean=True)
    with pytest.raises(ConfigError, match="there is no taskset 'reverse-txt'"):
        braidrl.run(config_of(tmp_path, {"env": {"taskset": {"id": "reverse-txt"}}}), clean=True)
    with pytest.raises(ConfigError, match="resume: cannot be combined with clean"):
        braidrl.run(config_of(tmp_path, {"env": environment}), clean=True, resume=True)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["precious"]


def test_file_and_typed_config_are_accepted(tmp_path: Path) -> None:
    source = '[[orchestrator.train.source]]\nenv.taskset.id = "reverse-text"'
    (tmp_path / "rl.toml").write_text(f'output_dir = "elsewhere"\n[model]\npath = "m"\n{source}\n')
    config = read(tmp_path / "rl.toml").config
    assert config.output_dir == Path("elsewhere")
    assert read(config).config == read(str(tmp_path / "rl.toml")).config == config


def test_run_reads_its_folder(tmp_path: Path) -> None:
    run, files = braidrl.Run(str(tmp_path)), RunFolder(tmp_path)
    with pytest.raises(FileNotFoundError, match="has no weights"):
        run.weights  # noqa: B018
    assert (run.rewards, run.metrics(), run.episodes(1)) == ([], [], [])
    for folder in (
        files.weights(2),
        files.weights(10),
        files.root / "metrics",
        files.train_episodes(1).parent,
    ):
        folder.mkdir(parents=True)
    files.metrics("orchestrator").write_text(
        '{"step": 1, "reward/mean": 0.5}\n{"step": 2, "reward/mean": 0.75}\n'
    )
    files.train_episodes(1).write_text('{"id": "a"}\n{"id": "b"}\n')
    assert run.weights == files.weights(10)
    assert run.rewards == [0.5, 0.75]
    assert run.metrics("orchestrator")[1] == {"step": 2, "reward/mean": 0.75}
    assert [episode["id"] for episode in run.episodes(1)] == ["a", "b"]
    assert repr(run) == f"Run({str(tmp_path)!r})"
