"""Runs of the three real processes on a tiny model."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from braidrl.utils.run_folder import RunFolder

CONFIG = """\
seq_len = 96
[model]
path = "{model}"
[trainer.optim]
lr = 1e-3
[orchestrator]
batch_size = 16
[orchestrator.renderer]
name = "qwen3"
enable_thinking = false
[orchestrator.train]
group_size = 4
[orchestrator.train.sampling]
max_tokens = 12
[[orchestrator.train.source]]
env.taskset.id = "reverse-text"
"""


class Launch:
    """`braid rl` with the config above in a separate folder. Packages in the folder `site` count as installed."""

    def __init__(self, folder: Path, model: Path, site: Path | None = None) -> None:
        self.folder = folder
        self.site = site
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / "run.toml"
        self.config.write_text(CONFIG.format(model=model))
        self.run = RunFolder(folder / "run")

    def start(self, *flags: str) -> subprocess.Popen:
        """Start the run and write its output to `output`."""
        command = [
            sys.executable,
            "-m",
            "braidrl.cli",
            "rl",
            "@",
            str(self.config),
            "--output_dir",
            str(self.run.root),
            *flags,
        ]
        env = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"PYTHONPATH": str(self.site)} if self.site else {})
        with self.output.open("w") as output:
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env)

    def finish(self, *flags: str, timeout: float = 180.0) -> str:
        """Run to the end, assert success and return the output."""
        code = self.start(*flags).wait(timeout)
        assert code == 0, self.report()
        return self.output.read_text()

    @property
    def output(self) -> Path:
        return self.folder / "output.txt"

    def rows(self, process: str) -> list[dict]:
        """Return the metrics of a process, one dictionary per step."""
        path = self.run.metrics(process)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def episodes(self, step: int) -> list[dict]:
        """Return the recorded training episodes of a step."""
        with self.run.train_episodes(step).open() as lines:
            return [json.loads(line) for line in lines]

    def report(self) -> str:
        """Return the end of all logs, for the message of a failed test."""
        logs = [f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.run.logs.glob("*.log"))]
        return "\n".join([self.output.read_text(), *logs])


def command_lines(launch: Launch) -> dict[int, list[str]]:
    """Return the arguments after `braid` of every process of a run, by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().decode().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(launch.run.configs) in " ".join(arguments):
                found[int(entry.name)] = arguments[3:]
    return found


def process_ids(launch: Launch) -> dict[str, int]:
    """Return the ids of the running processes of a run, by name."""
    return {arguments[0]: pid for pid, arguments in command_lines(launch).items()}


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 120.0) -> None:
    """Poll until `condition` is true. Fails with `what` at the deadline."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout:g} s for {what}"
        time.sleep(0.05)
