"""Plays an example: the commands of the first shell block of its README, one after another."""

import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

EXAMPLES = Path(__file__).parent
BRAID = [sys.executable, "-m", "braidrl.cli"]
SEEDED = ("tiny-model", "sft", "rl")
"""Commands that take a seed."""
COMMAND_SECONDS = 900.0
"""How long one command may take."""
SERVER_SECONDS = 120.0
"""How long a server may take until it answers."""


def commands(name: str) -> list[str]:
    """The lines of the block: each a `braid` command; one that ends in ` &` is a server that runs until the end.

    Raises `ValueError` for an example without them, or with anything else in the block.
    """
    path = EXAMPLES / name / "README.md"
    block = re.search(r"```bash\n(.*?)```", path.read_text(), flags=re.DOTALL) if path.is_file() else None
    lines = block[1].strip().splitlines() if block else []
    if not lines or any(not line.startswith("braid ") for line in lines):
        raise ValueError(
            f"the first bash block of {path} must hold `braid` commands alone, one a line; got {lines}"
        )
    return lines


def play(name: str, folder: Path, seed: int) -> float:
    """Run an example's commands with a seed in `folder`, where its outputs go; returns the seconds that they took.

    Raises `RuntimeError` with the end of the log when a command fails, `TimeoutError` when it does not end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(EXAMPLES)
    started = time.monotonic()
    with ExitStack() as servers:
        for number, line in enumerate(commands(name)):
            words = shlex.split(line)[1:]
            log = folder / f"{name}.{number}.log"
            if words[-1] == "&":
                servers.enter_context(serving(words[:-1], folder, log))
            else:
                _run([*words, "--seed", str(seed)] if words[0] in SEEDED else words, folder, log)
    return time.monotonic() - started


@contextmanager
def serving(words: list[str], folder: Path, log: Path) -> Iterator[str]:
    """A server (`inference ...`) that runs inside; gives its address, `http://127.0.0.1:PORT/v1`."""
    port = _port(words, folder)
    _require_free(port)
    with log.open("w") as output:
        process = subprocess.Popen([*BRAID, *words], cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_until_healthy(process, port, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(timeout=SERVER_SECONDS)


def _run(words: list[str], folder: Path, log: Path) -> None:
    with log.open("w") as output:
        process = subprocess.Popen([*BRAID, *words], cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = process.wait(timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise TimeoutError(
                f"braid {' '.join(words)} takes more than {COMMAND_SECONDS:.0f} s; see {log}"
            ) from None
    if code:
        raise RuntimeError(f"braid {' '.join(words)} ended with {code}:\n{_end(log)}")


def _port(words: list[str], folder: Path) -> int:
    if "--port" in words:
        return int(words[words.index("--port") + 1])
    config = tomllib.loads((folder / words[words.index("@") + 1]).read_text())
    return int(config["port"])


def _require_free(port: int) -> None:
    """Raises `RuntimeError` when somebody listens there, who would pass for the server that is to start."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise RuntimeError(
                f"port {port} is taken; stop what listens there, such as a server of an earlier run"
            )


def _wait_until_healthy(process: subprocess.Popen, port: int, log: Path) -> None:
    deadline = time.monotonic() + SERVER_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    state = "does not answer" if process.poll() is None else f"ended with {process.returncode}"
    raise RuntimeError(f"the server at port {port} {state}:\n{_end(log)}")


def _end(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-20:])
