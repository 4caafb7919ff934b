"""`braid verify @ FILE`: check gradients and log-probs with the model and config of a run, before it starts."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.core.load import load_config
from braidrl.configs.rl import SHARED_COPIES, RLConfig
from braidrl.report.table import print_table

if TYPE_CHECKING:
    from braidrl.entrypoints.verify.batch import VerifyInputs
    from braidrl.trainer.parallel import Parallel
    from braidrl.trainer.verify.checks import Check
    from braidrl.trainer.verify.probe import Gradient, Probe

FLAGS = """\
flags of this command, in addition to the keys of `braid rl`:
  --batch PATH  file of batches, run folder (its newest step) or file of its episodes/train (default: a small
                synthetic batch, sampled by the embedded engine)
  --json        print the report as JSON"""

LEGEND = """\
Each cut of the batch (row length, order, ranks) is compared with one row per sample. Loss: difference relative to the
sum of the samples' absolute losses. Gradient, before clipping: largest difference relative to the largest element
reached while samples are accumulated, because samples may cancel. Log-probs are in nats."""

TIMEOUT = 3600.0
"""Maximum time in seconds that the other ranks wait for the checks of the first one."""


@dataclass
class VerifyOptions:
    """Parsed command line of `braid verify`."""

    config_args: list[str] = field(default_factory=list)
    """Configuration arguments (`@ FILE` and dotted flags), for `load_config`."""
    batch: Path | None = None
    """Recorded batch; None: a synthetic one."""
    json: bool = False


def main(args: list[str]) -> int:
    """Run all checks and print the report. Exit codes: 0 all passed, 1 a check failed, 2 invalid configuration."""
    if "--help" in args or "-h" in args:
        print(f"{FLAGS}\n")
    options = parse(args)
    config = load_config(RLConfig, options.config_args, "braid verify", SHARED_COPIES)
    from rich.console import Console

    from braidrl.trainer.parallel import data_parallel

    with (
        data_parallel(TIMEOUT, config.trainer.parallel.shard_size) as parallel,
        Console(stderr=True).status("sampling") as status,
    ):
        found = verify(config, options.batch, parallel, status.update)
    if found is None:
        return 0
    batch, checks = found
    if options.json:
        print(json.dumps(report(config, batch, checks), indent=2))
    else:
        show(config, batch, checks)
    return 0 if all(check.ok for check in checks) else 1


def parse(args: list[str]) -> VerifyOptions:
    """Separate flags from configuration arguments. Raises `ConfigError` if `--batch` has no path."""
    options, rest = VerifyOptions(), iter(args)
    for arg in rest:
        if arg == "--json":
            options.json = True
        elif arg == "--batch":
            if (path := next(rest, "")) in ("", "@") or path.startswith("--"):
                raise ConfigError(
                    "--batch",
                    "has no path; give a file of batches, a run folder or a file of its episodes/train",
                )
            options.batch = Path(path)
        else:
            options.config_args.append(arg)
    return options


def verify(
    config: RLConfig, path: Path | None, parallel: "Parallel", show_status: Callable[[str], None]
) -> "tuple[VerifyInputs, list[Check]] | None":
    """Run all checks. Return their inputs and results on the first rank, None on the others.

    Args:
        path: recorded batch; None: a synthetic one.
        show_status: called with a description of each stage.

    Raises `ConfigError`.
    """
    from braidrl.entrypoints.verify.batch import DRIFT, make_inputs
    from braidrl.trainer.verify.checks import rank_check, share

    drift = DRIFT if path is None else 0.0
    batch: VerifyInputs | None = None
    checks: list[Check] = []
    expected: Gradient | None = None
    if parallel.leads:
        batch = make_inputs(config, path)
        checks, expected = single_process_checks(config, batch, drift, parallel, show_status)
    if parallel.world_size > 1:
        show_status(f"ranks: {parallel.world_size}, real")
        samples = share(None if batch is None else batch.samples, parallel)
        probe = load(config, parallel)
        check = rank_check(probe, probe.batches(samples, drift), expected)
        checks += [check] if check else []
    return None if batch is None else (batch, checks)


def single_process_checks(
    config: RLConfig,
    batch: "VerifyInputs",
    drift: float,
    parallel: "Parallel",
    show_status: Callable[[str], None],
) -> "tuple[list[Check], Gradient]":
    """Run the checks that need one process. Return them and the reference gradient for the check of several ranks."""
    from braidrl.trainer.rl.loss import LossFunctionError
    from braidrl.trainer.verify.checks import (
        cut_check,
        cuts,
        differentiate_alone,
        packing_check,
        sampler_check,
    )

    show_status("loading the trainer")
    probe = load(config, replace(parallel, rank=0, world_size=1))
    show_status("gradient of each sample by itself")
    batches = probe.batches(batch.samples, drift)
    try:
        expected, checks = differentiate_alone(probe, batches), []
    except LossFunctionError as error:
        raise ConfigError("trainer.loss", str(error)) from error
    for cut in cuts(batch.samples, probe.row_tokens, config.seed):
        show_status(cut.name)
        checks.append(cut_check(probe, batches, cut, expected))
    show_status("log-probs")
    return [*checks, sampler_check(probe, batch.sampled), packing_check(probe, batch.samples)], expected


def load(config: RLConfig, parallel: "Parallel") -> "Probe":
    """Load the trainer as the run would. Raises `ConfigError`."""
    from braidrl.trainer.verify.probe import Probe

    try:
        return Probe.load(config.trainer, parallel)
    except (OSError, ValueError) as error:
        raise ConfigError("trainer", str(error)) from error


def show(config: RLConfig, batch: "VerifyInputs", checks: "Sequence[Check]") -> None:
    """Print one row per check, with the remedy for failed ones."""
    tokens = sum(len(sample.token_ids) for sample in batch.samples)
    temperatures = sorted({f"{sample.temperature:g}" for sample in batch.sampled})
    print(
        f"{config.model.path} ({config.model.dtype}), loss {config.trainer.loss.type}; {batch.origin}: "
        f"{len(batch.samples)} samples, {tokens} tokens; temperature {', '.join(temperatures)}\n\n{LEGEND}\n"
    )
    rows = [
        (
            check.name,
            f"{check.worst:.1e}",
            f"{check.tolerance:.0e}",
            ", ".join(figures(check)),
            "ok" if check.ok else f"FAIL: {check.remedy}",
        )
        for check in checks
    ]
    print_table(("check", "worst", "tolerance", "figures", "verdict"), rows)


def figures(check: "Check") -> Iterator[str]:
    """Yield the measured values. A relative difference follows the absolute one in brackets."""
    for name, value in check.figures.items():
        what, _, kind = name.partition("_")
        if kind == "absolute":
            yield f"{what} {value:.1e} ({check.figures[f'{what}_relative']:.1e})"
        elif kind != "relative":
            yield f"{name.replace('_', ' ')} {value:.1e}"


def report(config: RLConfig, batch: "VerifyInputs", checks: "Sequence[Check]") -> dict[str, Any]:
    """Return the report as JSON data. Non-finite figures are strings, because JSON has no such numbers."""
    return {
        "ok": all(check.ok for check in checks),
        "model": config.model.path,
        "dtype": config.model.dtype,
        "loss": config.trainer.loss.type,
        "batch": batch.origin,
        "samples": len(batch.samples),
        "tokens": sum(len(sample.token_ids) for sample in batch.samples),
        "checks": [
            {
                "name": check.name,
                "ok": check.ok,
                "worst": _number(check.worst),
                "tolerance": check.tolerance,
                "figures": {name: _number(value) for name, value in check.figures.items()},
                "remedy": None if check.ok else check.remedy,
            }
            for check in checks
        ],
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
