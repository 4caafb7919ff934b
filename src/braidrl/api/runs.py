"""A whole run, as `braid rl` runs it, and what it left."""

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from braidrl.api.config import Config, read
from braidrl.api.start import open_folder, options_of
from braidrl.launch.run import carry_out
from braidrl.monitors.metrics import read_metrics
from braidrl.report.rewards import training_curve
from braidrl.utils.run_folder import RunFolder


class Run:
    """What a run folder tells, of a run that has ended or that goes on."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._files = RunFolder(self.folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def weights(self) -> Path:
        """The newest published policy: a Hugging Face folder (with LoRA: a peft folder).

        Raises `FileNotFoundError` where there is none yet.
        """
        versions = self._files.published("weights")
        if not versions:
            raise FileNotFoundError(
                f"{self.folder} has no weights: none were published, or it is no run folder"
            )
        return self._files.weights(versions[-1])

    @property
    def rewards(self) -> list[float]:
        """Mean reward of the episodes that ended in each step, in order, without steps in which none did."""
        return training_curve(self._files)[1]

    def metrics(
        self, process: Literal["trainer", "orchestrator", "eval"] = "trainer"
    ) -> list[dict[str, float | None]]:
        """One row a step (`eval`: an evaluated version), with its `step` and the metrics of docs/metrics.md."""
        return read_metrics(self._files.metrics(process))

    def episodes(self, step: int) -> list[dict[str, Any]]:
        """The recorded episodes of a step, as verifiers writes them, with exact floats; none where it is not there.

        Nodes of traces have `token_ids` with a `mask`, and `logprobs` and `advantages` of the tokens at the mask, which
        were sampled; `braid` says outcome, rewards and policy versions.
        """
        path = self._files.train_episodes(step)
        return (
            [msgspec.json.decode(line) for line in path.read_bytes().splitlines()] if path.is_file() else []
        )


def run(
    config: Config,
    *,
    resume: bool | str | os.PathLike[str] = False,
    clean: bool = False,
    quiet: bool = False,
    verbose: bool = False,
) -> Run:
    """Run inference, orchestrator and trainer to the end, as `braid rl` does, and return what they left.

    The processes are children of this one: an interrupt stops them, and nothing outlives it.

    Args:
        config: a TOML or YAML file, a dict of what such a file holds, or an `RLConfig`. In a dict, an `environment` may
            stand wherever an environment block (`env`) may.
        resume: continue from the newest checkpoint; or from a checkpoint, or the newest of a run, at this path.
        clean: remove what lies in `output_dir` first.
        quiet: print no progress, only where the run lies and how it ended.
        verbose: write debug messages to the logs, and show two lines a step where there is no terminal.

    Raises:
        ConfigError, ConfigErrors: the config, or what lies in `output_dir`; both are `ValueError`s.
        ProcessFailed: a process died; the message has the last lines of its log.
        PlacementError: a launcher found no room.
    """
    options = options_of(resume, clean, quiet, verbose)
    resolved, folder, done = open_folder(read(config), options)
    carry_out(resolved, folder, done, options)
    return Run(folder.root)
