"""Third-party packages for the tests of plugins: creation, installation and use."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.paths import REPOSITORY, SUPPORT

LOSS_CONFIG = """
from typing import ClassVar, Literal
from pydantic import Field
from braidrl.configs.loss import BaseLossConfig

class Config(BaseLossConfig):
    '''Importance-weighted policy gradient that trusts everything.'''

    paper: ClassVar[str] = "folklore"
    loss_function: ClassVar[str] = {function!r}
    type: Literal["trusting"] = "trusting"
    scale: float = Field(1.0, gt=0)
    '''Factor on the loss.'''
"""

LOSS_FUNCTION = """
from braidrl.trainer.rl.loss import LossOutputs, mean

def trusting_loss(inputs, config):
    '''Minus scale * A * r.'''
    member = inputs.loss_mask
    ratio = (inputs.trainer_logprobs - inputs.inference_logprobs)[member].exp()
    loss = -config.scale * (ratio * inputs.advantages[member] * inputs.loss_weights[member]).sum()
    return LossOutputs(loss, {"ratio": mean(ratio)})
"""


Commands = Callable[..., subprocess.CompletedProcess[str]]
COMMANDS = """
import contextlib, io, json, sys
from braidrl.cli import main
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(json.loads(line))
        except SystemExit as end:
            code = end.code
    print(json.dumps([code or 0, out.getvalue(), err.getvalue()]), flush=True)
"""


def _environment(site: Path) -> dict[str, str]:
    path = [str(site), str(REPOSITORY), str(SUPPORT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {"PATH": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ":".join(path)}


def python(site: Path, *args: str, folder: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process in which the package in `site` counts as installed."""
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        cwd=folder,
        env=_environment(site),
        timeout=120,
    )


@contextmanager
def commands(site: Path) -> Iterator[Commands]:
    """Yield a function that runs `braid` with its arguments. One process, in which the package in `site` counts as
    installed, serves all calls."""
    with subprocess.Popen(
        [sys.executable, "-c", COMMANDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=_environment(site),
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def braid(*args: str) -> subprocess.CompletedProcess[str]:
            process.stdin.write(json.dumps(args) + "\n")
            process.stdin.flush()
            return subprocess.CompletedProcess(args, *json.loads(process.stdout.readline()))

        yield braid
        process.stdin.close()


def installed(
    folder: Path, package: str, name: str, value: str, source: str = "", group: str = "braidrl.algorithms"
) -> Path:
    """Create a folder like an installer: a module `PACKAGE`, and metadata with one entry point."""
    info = folder / f"{package}-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    (folder / f"{package}.py").write_text(source)
    return folder


def installed_loss(folder: Path) -> Path:
    """Create a package `trusting` with a loss of that type. Config and function are in separate modules."""
    config = LOSS_CONFIG.format(function="trusting_function:trusting_loss")
    installed(folder, "trusting", "trusting", "trusting:Config", config, "braidrl.losses")
    (folder / "trusting_function.py").write_text(LOSS_FUNCTION)
    return folder


def listed(text: str) -> dict[str, str]:
    """Parse the output of `braid algorithms` or `braid losses`: the joined lines of each type."""
    blocks = [block.split("\n", 1) for block in text.split("\n\n")]
    return {name: " ".join(rest.split()) for name, rest in blocks}
