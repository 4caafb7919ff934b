"""Packages that bring something to Braid, for the tests of plugins: made, installed and used."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def python(site: Path, *args: str, folder: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """Run Python where the installed package is found as any other."""
    path = [str(site), str(REPOSITORY), str(REPOSITORY / "tests")]
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


def listed(text: str) -> dict[str, str]:
    """What `braid algorithms` or `braid losses` prints of each type, its lines joined."""
    blocks = [block.split("\n", 1) for block in text.split("\n\n")]
    return {name: " ".join(rest.split()) for name, rest in blocks}
