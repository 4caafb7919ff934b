"""Packages that bring something to Braid, for the tests of plugins: made, installed and used."""

import subprocess
import sys
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


def python(site: Path, *args: str, folder: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """Run Python where the installed package is found as any other."""
    path = [str(site), str(REPOSITORY), str(SUPPORT)]
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ":".join(path)},
        timeout=120,
    )


def installed(
    folder: Path, package: str, name: str, value: str, source: str = "", group: str = "braidrl.algorithms"
) -> Path:
    """A folder as an installer leaves it: a module `PACKAGE`, and metadata with one entry point."""
    info = folder / f"{package}-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    (folder / f"{package}.py").write_text(source)
    return folder


def installed_loss(folder: Path) -> Path:
    """A package `trusting` with the loss of that type, its config apart from its function, in a folder."""
    config = LOSS_CONFIG.format(function="trusting_function:trusting_loss")
    installed(folder, "trusting", "trusting", "trusting:Config", config, "braidrl.losses")
    (folder / "trusting_function.py").write_text(LOSS_FUNCTION)
    return folder


def listed(text: str) -> dict[str, str]:
    """What `braid algorithms` or `braid losses` prints of each type, its lines joined."""
    blocks = [block.split("\n", 1) for block in text.split("\n\n")]
    return {name: " ".join(rest.split()) for name, rest in blocks}
