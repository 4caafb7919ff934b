"""Provenance of a run: machine, versions, and state of the code."""

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
"""Timeout of git and nvidia-smi, in seconds."""

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
"""Prefixes of the environment variables that are recorded."""
SECRETS = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL")
"""Substrings of names of environment variables that are never recorded."""


class Surroundings(msgspec.Struct):
    """Machine and software versions."""

    braidrl: str
    python: str
    platform: str
    cores: int
    """Number of cores that the launcher may use."""
    gpus: list[str]
    """Name, memory and driver of each GPU, as reported by nvidia-smi."""
    variables: dict[str, str]
    """Environment variables that affect the run, without those that look like secrets."""

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
    """Git checkout with code of the run."""

    path: str
    commit: str
    branch: str
    """Branch name; `HEAD` if none is checked out."""
    dirty: bool
    """True if tracked files differ from the commit."""

    @classmethod
    def found(cls) -> list[Self]:
        """Return the checkouts of the working directory and of Braid, without duplicates and non-checkouts."""
        folders = (Path.cwd(), Path(__file__).parent)
        tops = dict.fromkeys(
            _output_of("git", "-C", str(folder), "rev-parse", "--show-toplevel") for folder in folders
        )
        return [cls._at(top) for top in tops if top]

    @classmethod
    def _at(cls, top: str) -> Self:
        def git(*args: str) -> str:
            return _output_of("git", "-C", top, *args) or ""

        return cls(
            path=top,
            commit=git("rev-parse", "HEAD"),
            branch=git("rev-parse", "--abbrev-ref", "HEAD"),
            dirty=bool(git("status", "--porcelain", "--untracked-files=no")),
        )


def packages() -> str:
    """Return all installed packages and their versions as a pip constraints file."""
    found = {each.metadata["Name"]: each.version for each in distributions()}
    return "".join(f"{name}=={found[name]}\n" for name in sorted(filter(None, found), key=str.lower))


def _variables() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(VARIABLES) and not any(word in name.upper() for word in SECRETS)
    }


def _gpus() -> Iterator[str]:
    output = _output_of("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    yield from (output or "").splitlines()


def _output_of(*command: str) -> str | None:
    """Return the output of a program, or None if it is missing, fails or exceeds `DEADLINE`."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
