"""Stock vLLM servers for the tests, started with `braid inference`."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import tomli_w

START_SECONDS = 300.0
"""Maximum time in seconds for a server to start."""
STOP_SECONDS = 30.0
"""Maximum time in seconds for a server to end."""


def settings(python: Path, args: tuple[str, ...] = (), **env: str) -> dict:
    """Return the `[inference]` block of a small vLLM that starts quickly."""
    small = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    vllm = {"python": str(python), "args": ["--enforce-eager", *args], "env": small | env}
    return {"engine": "vllm", "vllm": vllm}


@contextmanager
def serving(folder: Path, block: dict, **variables: str) -> Iterator[str]:
    """Start `braid inference` and yield its address. The server is ready only after `wait_ready`."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "inference.toml").write_text(tomli_w.dumps({**block, "port": port}))
    command = [sys.executable, "-m", "braidrl.cli", "inference", "@", str(folder / "inference.toml")]
    with (folder / "inference.log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        _signal_group(process, signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        finally:
            _signal_group(process, signal.SIGKILL)


def _signal_group(process: subprocess.Popen, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def wait_ready(url: str, log: Path) -> None:
    """Wait until a server answers. Fails at the deadline with the end of its log."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"{url} did not answer within {START_SECONDS:g} s:\n{log.read_text()[-3000:]}")
