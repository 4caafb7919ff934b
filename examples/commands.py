"""Run an example: the commands of the first shell block of its README, in order."""

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
"""Commands that accept `--seed`."""
COMMAND_SECONDS = 900.0
"""Maximum duration of one command in seconds."""
SERVER_SECONDS = 120.0
"""Maximum time in seconds for a server to become healthy, and to stop."""


def commands(name: str) -> list[str]:
    """Return the `braid` commands of an example. One that ends in ` &` is a server that runs until the end.

    Raises `ValueError` if there are none, or if the block contains anything else.
    """
    path = EXAMPLES / name / "README.md"
    block = re.search(r"```bash\n(.*?)```", path.read_text(), flags=re.DOTALL) if path.is_file() else None
    lines = block[1].strip().splitlines() if block else []
    if not lines or any(not line.startswith("braid ") for line in lines):
        raise ValueError(
            f"the first bash block of {path} is {lines}; it must contain only `braid` commands, one per line"
        )
    return lines


def play(name: str, folder: Path, seed: int) -> float:
    """Run the commands of an example in `folder` and return their duration in seconds.

    Raises `RuntimeError` with the end of the log if a command fails, and `TimeoutError` after `COMMAND_SECONDS`.
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
    """Run a server (`inference ...`) within the context and yield its address, `http://127.0.0.1:PORT/v1`."""
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
                f"braid {' '.join(words)} did not end within {COMMAND_SECONDS:.0f} s; see {log}"
            ) from None
    if code:
        raise RuntimeError(f"braid {' '.join(words)} ended with exit code {code}:\n{_end(log)}")


def _port(words: list[str], folder: Path) -> int:
    if "--port" in words:
        return int(words[words.index("--port") + 1])
    config = tomllib.loads((folder / words[words.index("@") + 1]).read_text())
    return int(config["port"])


def _require_free(port: int) -> None:
    """Raise `RuntimeError` if a process listens on the port: its health check would pass for that of our server."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise RuntimeError(
                f"port {port} is in use; stop the process that listens on it, such as a server of an earlier run"
            )


def _wait_until_healthy(process: subprocess.Popen, port: int, log: Path) -> None:
    deadline = time.monotonic() + SERVER_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    state = (
        f"is not healthy after {SERVER_SECONDS:.0f} s"
        if process.poll() is None
        else f"ended with exit code {process.returncode}"
    )
    raise RuntimeError(f"the server at port {port} {state}:\n{_end(log)}")


def _end(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-20:])
