"""Config files with an `algorithm` section."""

from pathlib import Path

from braidrl.cli import main

MINIMAL = """\
model:
  path: m
orchestrator:
  train:
    source:
      - env: {taskset: {id: reverse-text}}
"""


def dry_run(tmp_path: Path, text: str, *flags: str) -> int:
    """Return the exit code of `braid rl --dry-run` with this file."""
    (tmp_path / "run.yaml").write_text(text)
    return main(["rl", "@", str(tmp_path / "run.yaml"), *flags, "--dry-run"])
