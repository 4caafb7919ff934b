"""Completion in real shells."""

import os
import pty
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from braidrl.configs.plugins import LOSSES
from braidrl.entrypoints import completion
from braidrl.entrypoints.commands import COMMANDS

READY = "ready-for-keys"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the script of each shell to a folder that also contains `my_run.toml`."""
    folder = tmp_path_factory.mktemp("shells")
    words = completion.words_of_all()
    for shell, script in completion.SHELLS.items():
        (folder / f"braid.{shell}").write_text("\n".join(script(words)) + "\n")
    (folder / "my_run.toml").touch()
    return folder


def candidates(scripts: Path, *line: str) -> list[str]:
    """Return the completions that bash offers for the last word of a command line."""
    quoted = " ".join(f"'{word}'" for word in line)
    program = (
        f"source braid.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(line) - 1}; _braid; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", program], cwd=scripts, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stderr == ""
    return done.stdout.split()


def test_bash_offers_commands_keys_and_values(scripts: Path) -> None:
    assert candidates(scripts, "braid", "") == [*COMMANDS, "--help", "--version"]
    assert candidates(scripts, "braid", "ne") == ["new-algorithm"]
    assert candidates(scripts, "braid", "rl", "--trainer.optim.l") == ["--trainer.optim.lr"]
    assert candidates(scripts, "braid", "rl", "--trainer.loss.type", "") == list(LOSSES)
    assert candidates(scripts, "braid", "rl", "--trainer.loss.score_centering", "t") == ["true"]
    assert candidates(scripts, "braid", "rl", "--q") == ["--quiet"]
    assert candidates(scripts, "braid", "schema", "s") == ["sft", "score"]
    assert candidates(scripts, "braid", "losses", "g") == ["grpo", "gspo"]


def test_bash_completes_files_natively(scripts: Path) -> None:
    assert candidates(scripts, "braid", "rl", "@", "my") == []
    assert candidates(scripts, "braid", "runs", "") == []


def typed(shell: Sequence[str], start: str, keys: str, expected: str, folder: Path) -> str:
    """Type `keys` into a shell on a terminal and return its output as soon as it contains `expected`."""
    environment = {**os.environ, "TERM": "dumb", "PS1": "> ", "HOME": str(folder), "INPUTRC": "/dev/null"}
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe(shell[0], list(shell), environment)
    shown = ""

    def wait_for(text: str) -> None:
        nonlocal shown
        deadline = time.monotonic() + 60
        while text not in shown:
            assert time.monotonic() < deadline, f"{shell[0]} showed {shown!r}, not {text!r}"
            if select.select([terminal], [], [], 0.2)[0]:
                shown += os.read(terminal, 4096).decode(errors="replace")

    try:
        os.write(terminal, f"{start}; echo {READY[:5]}''{READY[5:]}\n".encode())
        wait_for(READY)
        os.write(terminal, keys.encode())
        wait_for(expected)
        return shown
    finally:
        os.close(terminal)
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("braid sch\t", "braid schema "),
        ("braid rl --trainer.optim.l\t", "--trainer.optim.lr "),
        ("braid rl --trainer.loss.type ic\t", "--trainer.loss.type icepop "),
        ("braid rl @ my\t", "@ my_run.toml"),
    ],
)
def test_tab_in_interactive_bash(keys: str, expected: str, scripts: Path) -> None:
    assert expected in typed(["bash", "--norc", "-i"], "source braid.bash", keys, expected, scripts)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed (apt-get install zsh)")
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("braid sch\t", "braid schema "),
        ("braid rl --trainer.optim.l\t", "--trainer.optim.lr"),
        ("braid rl --trainer.loss.type ic\t", "--trainer.loss.type icepop"),
        ("braid rl @ my\t", "@ my_run.toml"),
    ],
)
def test_tab_in_interactive_zsh(keys: str, expected: str, scripts: Path) -> None:
    start = "autoload -U compinit; compinit -u -D; source ./braid.zsh"
    assert expected in typed(["zsh", "-f", "-i"], start, keys, expected, scripts)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed (apt-get install fish)")
def test_fish_offers_commands_keys_and_values(scripts: Path) -> None:
    def offered(line: str) -> list[str]:
        command = ["fish", "--no-config", "-c", f"source braid.fish; complete -C '{line}'"]
        done = subprocess.run(command, cwd=scripts, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stderr == ""
        return [each.split("\t")[0] for each in done.stdout.splitlines()]

    assert offered("braid sch") == ["schema"]
    assert offered("braid rl --trainer.optim.l") == ["--trainer.optim.lr"]
    assert sorted(offered("braid rl --trainer.loss.type ")) == sorted(LOSSES)
    assert "my_run.toml" in offered("braid rl @ my")


def test_unsupported_shell_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        completion.main(["csh"])
    assert ended.value.code == 2
    assert "invalid choice: 'csh'" in capsys.readouterr().err
