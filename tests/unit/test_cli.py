"""The command line: fast help, one error line per mistake, no overwritten files."""

import subprocess
import sys
from pathlib import Path

import pytest

from braidrl.cli import COMMANDS, main
from tests.support.paths import REPOSITORY

RECIPE = REPOSITORY / "examples" / "grpo" / "rl.toml"
HEAVY = ("torch", "transformers", "verifiers")


def loaded_after(*commands: list[str]) -> list[set[str]]:
    """Run `braid ARGS` for each of `commands` in one new process, and return the heavy modules loaded after each."""
    code = f"""
import sys
from braidrl.cli import main
for args in {list(commands)!r}:
    try: main(args)
    except SystemExit: pass
    print("LOADED", *(name for name in {HEAVY} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line.startswith("LOADED")]
    assert len(lines) == len(commands), done.stderr
    return [set(line.split()[1:]) for line in lines]


def test_help_and_errors_of_braid_load_nothing_heavy() -> None:
    helps = [["--help"], *([name, "--help"] for name in COMMANDS)]
    wrong = ["rl", "@", str(RECIPE), "--trainer.optim.lrr", "1"]
    for args, loaded in zip([*helps, wrong], loaded_after(*helps, wrong), strict=True):
        assert not loaded, args


def test_dry_run_needs_no_torch() -> None:
    (loaded,) = loaded_after(["rl", "@", str(RECIPE), "--dry-run"])
    assert loaded <= {"verifiers"}


def test_dry_run_shows_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rl", "@", str(RECIPE), "--dry-run", "--trainer.optim.lr", "0.125"]) == 0
    shown = capsys.readouterr().out
    assert "lr = 0.125" in shown and 'id = "braid-chat"' in shown


def test_braid_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "braidrl.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("braid ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--trainer.optim.lrr", "1"],
            "trainer.optim.lrr: unknown key; did you mean 'trainer.optim.lr'? [command line]",
        ),
        (["--orchestrator.batch_size", "many"], "orchestrator.batch_size: input should be a valid integer"),
        (["--model.dtype", "fp8"], "model.dtype: input should be 'float32' or 'bfloat16' (got 'fp8')"),
        (["--trainer.seed", "3"], "trainer.seed differs from seed at the root"),
        (["--orchestrator.batch_size", "4"], "group_size (8) is larger than batch_size (4)"),
        (["@", "nowhere.toml"], "nowhere.toml"),
        (["--resume", "--clean"], "give one of them"),
    ],
)
def test_invalid_configuration_is_a_one_line_error(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rl", "@", str(RECIPE), *flags]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_unknown_key_names_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = tmp_path / "extra.toml"
    extra.write_text("[trainer]\nactivation_checkpoint = true\n")
    assert main(["rl", "@", str(RECIPE), "@", str(extra)]) == 2
    error = capsys.readouterr().err
    assert "trainer.activation_checkpoint: unknown key" in error
    assert "trainer.activation_checkpointing" in error
    assert str(extra) in error


def test_unknown_environment_key_has_its_full_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "rl.toml"
    config.write_text(RECIPE.read_text().replace("env.taskset.num_tasks", "env.taskset.num_task"))
    assert main(["rl", "@", str(config), "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert "orchestrator.train.source[0].env.taskset.num_task" in error
    assert "num_tasks" in error


def test_unknown_command_suggests_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quikstart"]) == 2
    assert "did you mean `braid quickstart`" in capsys.readouterr().err


def test_later_files_and_flags_take_precedence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text('[model]\npath = "m"\n[optim]\nlr = 0.5\n[scheduler]\nwarmup_steps = 7\n')
    second.write_text("[optim]\nlr = 0.25\n")
    files = ["@", str(first), "@", str(second)]
    assert main(["trainer", *files, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "lr = 0.25" in shown and "warmup_steps = 7" in shown
    assert main(["trainer", *files, "--optim.lr", "0.125", "--dry-run"]) == 0
    assert "lr = 0.125" in capsys.readouterr().out


def test_run_folder_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious.txt").write_text("mine")
    assert main(["rl", "@", str(RECIPE), "--output_dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "--resume" in error and "--clean" in error
    assert (tmp_path / "run" / "precious.txt").read_text() == "mine"


def test_resume_without_a_run_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rl", "@", str(RECIPE), "--output_dir", str(tmp_path / "run"), "--resume"]) == 2
    assert "there is no run" in capsys.readouterr().err
