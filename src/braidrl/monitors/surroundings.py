"""What a run stands on: machine, versions, and the state of the code."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Self

import msgspec

from braidrl.utils.process import available_cores

DEADLINE = 5.0
"""Longest wait for git or nvidia-smi, in seconds."""

VARIABLES = (
    "BRAID_",
    "CUDA_",
    "NCCL_",
    "OMP_",
    "NVIDIA_VISIBLE",
    "PYTORCH_",
    "TORCH_",
    "SLURM_",
    "RAY_",
    "VLLM_",
)
"""Beginnings of the environment variables that are recorded ..."""
SECRETS = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL")
"""... unless one of these is in their names."""


class Surroundings(msgspec.Struct):
    """The machine and the versions of what runs on it."""

    braidrl: str
    python: str
    platform: str
    cores: int
    """That the launcher may use."""
    gpus: list[str]
    """Name, memory and driver of each, as nvidia-smi tells them."""
    variables: dict[str, str]
    """Environment variables that change how things run; none that looks like a secret."""

    @classmethod
    def found(cls) -> Self:
        return cls(
            braidrl=version("braidrl"),
            python=platform.python_version(),
            platform=platform.platform(),
            cores=available_cores(),
            gpus=list(_gpus()),
            variables=_variables(),
        )


class Repository(msgspec.Struct):
    """A git checkout that the run's code comes from."""

    path: str
    commit: str
    branch: str
    """`HEAD` where none is checked out."""
    dirty: bool
    """Whether tracked files differ from the commit."""

    @classmethod
    def found(cls) -> list[Self]:
        """Those of the working directory and of Braid itself, where they are checkouts; one if it is the same."""
        folders = (Path.cwd(), Path(__file__).parent)
        tops = dict.fromkeys(
            _ask("git", "-C", str(folder), "rev-parse", "--show-toplevel") for folder in folders
        )
        return [cls._at(top) for top in tops if top]

    @classmethod
    def _at(cls, top: str) -> Self:
        def git(*args: str) -> str:
            return _ask("git", "-C", top, *args) or ""

        return cls(
            path=top,
            commit=git("rev-parse", "HEAD"),
            branch=git("rev-parse", "--abbrev-ref", "HEAD"),
            dirty=bool(git("status", "--porcelain", "--untracked-files=no")),
        )


def packages() -> str:
    """Every installed package with its version, a line each, in the form of a pip constraints file."""
    found = {each.metadata["Name"]: each.version for each in distributions()}
    return "".join(f"{name}=={found[name]}\n" for name in sorted(filter(None, found), key=str.lower))


def _variables() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(VARIABLES) and not any(word in name.upper() for word in SECRETS)
    }


def _gpus() -> Iterator[str]:
    answer = _ask("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    yield from (answer or "").splitlines()


def _ask(*command: str) -> str | None:
    """What a program answers; None where there is no such program, or it fails or takes too long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
