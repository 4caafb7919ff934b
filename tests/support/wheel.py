"""The wheel of the project, and an environment with it."""

import subprocess
import sysconfig
import venv
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from tests.support.paths import REPOSITORY


def build_wheel(folder: Path) -> Path:
    """Build the wheel into `folder`."""
    (path,) = WheelBuilder(str(REPOSITORY)).build(directory=str(folder), versions=["standard"])
    return Path(path)


def install_wheel(wheel: Path, folder: Path) -> Path:
    """Install a wheel with pip into a new environment and return the folder of its commands.

    The environment sees the packages of this one except braidrl, so that pip resolves the dependencies that the wheel
    declares but downloads none.
    """
    venv.create(folder / "venv", with_pip=True)
    linked = folder / "packages"
    linked.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "braidrl" not in package.name and package.name not in ("pip", "__pycache__"):
            (linked / package.name).symlink_to(package)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "linked.pth").write_text(f"{linked}\n")
    commands = folder / "venv" / "bin"
    pip = [str(commands / "python"), "-m", "pip", "--quiet"]
    # Python 3.11 installs an old setuptools into a new environment, which would shadow the linked one.
    subprocess.run([*pip, "uninstall", "--yes", "setuptools"], check=True, capture_output=True, timeout=120)
    install = [*pip, "install", "--no-index", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return commands
