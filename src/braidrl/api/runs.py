"""Complete runs from Python, equivalent to `braid rl`, and access to their results."""

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from braidrl.api.config import Config, read
from braidrl.api.start import open_folder, options_of
from braidrl.launch.run import launch_run
from braidrl.monitors.metrics import read_metrics
from braidrl.report.rewards import training_curve
from braidrl.utils.run_folder import RunFolder


class Run:
    """Results of a finished or running run, read from its run folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._files = RunFolder(self.folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def weights(self) -> Path:
        """Path of the newest published policy: a Hugging Face folder, or with LoRA a peft folder.

        Raises `FileNotFoundError` if none has been published.
        """
        versions = self._files.published("weights")
        if not versions:
            raise FileNotFoundError(
                f"{self.folder} has no weights: none have been published, or it is not a run folder"
            )
        return self._files.weights(versions[-1])

    @property
    def rewards(self) -> list[float]:
        """Mean reward of the episodes that ended in each step, in step order. Steps without episodes are omitted."""
        return training_curve(self._files)[1]

    def metrics(
        self, process: Literal["trainer", "orchestrator", "eval"] = "trainer"
    ) -> list[dict[str, float | None]]:
        """Return one row per step (`eval`: per evaluated version) with `step` and the metrics of docs/metrics.md."""
        return read_metrics(self._files.metrics(process))

    def episodes(self, step: int) -> list[dict[str, Any]]:
        """Return the recorded episodes of a step in the format of verifiers, with exact floats. May be empty.

        Each node of a trace has `token_ids` and a `mask` of the sampled tokens. Its `logprobs` and `advantages` contain
        one value per sampled token. The key `braid` contains the outcome, rewards and policy versions.
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
    """Run inference, orchestrator and trainer to completion, as `braid rl` does, and return the results.

    The processes are children of this one. They stop on an interrupt and do not outlive it.

    Args:
        config: path of a TOML or YAML file, a dict with the content of such a file, or an `RLConfig`. A dict may
            contain an `environment` in place of an environment block (`env`).
        resume: True to continue from the newest checkpoint in `output_dir`, or the path of a checkpoint or of another
            run to continue from.
        clean: remove the contents of `output_dir` first.
        quiet: print only the run folder and the outcome, no progress.
        verbose: write debug messages to the logs, and print two lines per step if the output is not a terminal.

    Raises:
        ConfigError, ConfigErrors: the config or the state of `output_dir` is invalid. Both are `ValueError`s.
        ProcessFailed: a process failed. The message contains the last lines of its log.
        PlacementError: the launcher has no resources for a process.
    """
    options = options_of(resume, clean, quiet, verbose)
    resolved, folder, after = open_folder(read(config), options)
    launch_run(resolved, folder, after, options)
    return Run(folder.root)
