"""Run every command line of the documents, as far as possible without training, network and GPU."""

import asyncio
import importlib.util
import os
import re
import shutil
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from braidrl.cli import main
from braidrl.entrypoints import track
from braidrl.entrypoints.quickstart import Quickstart
from braidrl.entrypoints.verify import command as verify
from braidrl.report.page import server
from braidrl.utils.run_folder import RunFolder
from tests.support.docs_stage import Stage, record
from tests.support.documents import BLOCKS, REPOSITORY, Block
from tests.support.shell_lines import commands_of

SHOWN = [block for block in BLOCKS if any(commands_of(block))]
DRY = ("rl", "sft", "eval", "trainer", "orchestrator", "inference")
"""Commands that are tested with `--dry-run`."""
READING = ("report", "watch", "runs", "compare", "export", "eval", "score", "track", "verify")
"""Commands that read runs."""
ELSEWHERE = {
    "python -m vllm.entrypoints.openai.api_server": "vLLM is not installed here; tests/engines starts it so",
    "python -m pytest braid-bounded": "test_the_tests_of_a_new_package_pass",
    "braid score outputs/run/episodes/train/step_000001.jsonl --algo.type bounded": "test_third_party.py",
    "ray start --head": "test_ray_cluster.py",
    ". .venv/bin/activate": "the line above it makes it",
    "source": "the shell's own",
}
"""Commands that are not run here, by prefix, and the test that covers them or the reason why none is needed."""
TOOLS = ("lint-imports", "mkdocs", "mypy", "ruff")
"""Programs installed by `.[dev]`."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> RunFolder:
    """Recorded run; read only."""
    return asyncio.run(record(tmp_path_factory.mktemp("recorded") / "run", tiny_model_dir))


@pytest.fixture
def stage(
    recorded: RunFolder, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Stage:
    """A reader's working folder. Training, waiting and network access are disabled."""

    async def serve(*_: object) -> None:
        """Return immediately instead of serving."""

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Quickstart, "run", lambda _: 0)
    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setattr(track, "_track", lambda *_: None)
    monkeypatch.setattr(verify, "verify", lambda *_: None)
    return Stage(tmp_path, recorded, tiny_model_dir)


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: block.place)
def test_commands_do_what_they_say(block: Block, stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.write(block.document)
    for words in commands_of(block):
        if any(" ".join(words).startswith(begin) for begin in ELSEWHERE):
            continue
        fault = run(words, stage)
        assert not fault, f"{block.place}: {' '.join(words)}: {fault}; {capsys.readouterr().err}"


def test_what_is_run_elsewhere_is_still_there() -> None:
    lines = [" ".join(words) for block in SHOWN for words in commands_of(block)]
    assert [begin for begin in ELSEWHERE if not any(line.startswith(begin) for line in lines)] == []
    named = [re.search(r"\btest\w+\b", reason) for reason in ELSEWHERE.values()]
    sources = "\n".join(f"{path}\n{path.read_text()}" for path in REPOSITORY.glob("tests/**/test_*.py"))
    assert [found[0] for found in named if found and not re.search(rf"\b{found[0]}\b", sources)] == []


def run(words: list[str], stage: Stage) -> str:
    """Run a command and return the error, or an empty string."""
    program, args = Path(words[0]).name, words[1:]
    if program == "torchrun" and "braidrl.cli" in args:
        program, args = "braid", args[args.index("braidrl.cli") + 1 :]
    if program == "braid":
        return braid(args, stage)
    if program in ("python", "python3"):
        return python(args)
    if program == "pip":
        return pip(args)
    if "/" in words[0]:
        return "" if os.access(REPOSITORY / words[0], os.X_OK) else "there is no such program"
    known = program in TOOLS and shutil.which(program, path=Path(sys.executable).parent)
    return "" if known else "no rule for it"


def braid(args: list[str], stage: Stage) -> str:
    """Run a `braid` command in this process."""
    command = args[0]
    args = stage.files(stage.runs(args) if command in READING else args)
    if command == "export" and Path(args[2]).exists():  # written by an earlier command
        shutil.rmtree(args[2])
    if command in DRY and "--dry-run" not in args:
        args.append("--dry-run")
    try:
        code = main(args)
    except SystemExit as end:  # --help, or arguments that argparse rejects
        code = end.code
    return f"exit code {code}" if code else ""


def python(args: list[str]) -> str:
    """Check that test paths or the module exist, or that the script compiles and has the flags."""
    if args[:2] == ["-m", "pytest"]:
        lacking = [word for word in args[2:] if "/" in word and not (REPOSITORY / word).exists()]
        return f"there is no {lacking[0]}" if lacking else ""
    if args[0] == "-m":
        return "" if importlib.util.find_spec(args[1]) else f"there is no module {args[1]}"
    source = (REPOSITORY / args[0]).read_text()
    compile(source, args[0], "exec")
    unknown = [word for word in args[1:] if word.startswith("-") and f'"{word}"' not in source]
    return f"it does not know {unknown[0]}" if unknown else ""


def pip(args: list[str]) -> str:
    """Check that extras are defined in pyproject.toml and that files exist."""
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"(?:braidrl|\.)\[([\w,-]+)\]", " ".join(args))
    unknown = [extra for names in named for extra in names.split(",") if extra not in extras]
    files = [name.partition("[")[0] for flag, name in pairwise(args) if flag in ("-c", "-e", "-r")]
    lacking = [name for name in files if not (Path(name).exists() or (REPOSITORY / name).exists())]
    return " ".join(f"there is no {each}" for each in (*unknown, *lacking))
