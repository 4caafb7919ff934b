"""`braid verify @ FILE`: before a long run, show on its own model and config that what it relies on holds."""

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
flags of the command itself; all others are those of `braid rl`:
  --batch PATH  a file of batches, a run folder (its newest step) or a file of its episodes/train; without it the engine
                samples a small synthetic batch
  --json        print the report as JSON"""

LEGEND = """\
A cut is compared with each sample in a row of its own: the loss, relative to the sum of the samples' absolute losses,
and the gradient before clipping, its largest difference relative to its largest element (the largest that it has while
samples are added, for they may cancel). Log-probs are in nats."""

TIMEOUT = 3600.0
"""Seconds that other processes wait while the first one looks at the batch alone."""


@dataclass
class VerifyOptions:
    """What stood on the command line beside the configuration."""

    config_args: list[str] = field(default_factory=list)
    batch: Path | None = None
    json: bool = False


def main(args: list[str]) -> int:
    """Exit codes: 0 all checks are ok, 1 one failed, 2 bad configuration."""
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
    """Split a command line."""
    options, rest = VerifyOptions(), iter(args)
    for arg in rest:
        if arg == "--json":
            options.json = True
        elif arg == "--batch":
            if (path := next(rest, "")) in ("", "@") or path.startswith("--"):
                raise ConfigError(
                    "--batch", "name a file of batches, a run folder or a file of its episodes/train"
                )
            options.batch = Path(path)
        else:
            options.config_args.append(arg)
    return options


def verify(
    config: RLConfig, path: Path | None, parallel: "Parallel", say: Callable[[str], None]
) -> "tuple[VerifyInputs, list[Check]] | None":
    """All checks, which the first process gets and the others do not. `say` is told what is being done.

    Raises `ConfigError`.
    """
    from braidrl.entrypoints.verify.batch import DRIFT, material
    from braidrl.trainer.verify.checks import rank_check, share

    drift = DRIFT if path is None else 0.0
    batch: VerifyInputs | None = None
    checks: list[Check] = []
    expected: Gradient | None = None
    if parallel.leads:
        batch = material(config, path)
        checks, expected = alone(config, batch, drift, parallel, say)
    if parallel.world_size > 1:
        say(f"ranks: {parallel.world_size}, real")
        samples = share(None if batch is None else batch.samples, parallel)
        probe = load(config, parallel)
        check = rank_check(probe, probe.batches(samples, drift), expected)
        checks += [check] if check else []
    return None if batch is None else (batch, checks)


def alone(
    config: RLConfig, batch: "VerifyInputs", drift: float, parallel: "Parallel", say: Callable[[str], None]
) -> "tuple[list[Check], Gradient]":
    """What one process can check by itself, and the gradient that several are compared with."""
    from braidrl.trainer.rl.loss import LossFunctionError
    from braidrl.trainer.verify.checks import (
        cut_check,
        cuts,
        differentiate_alone,
        packing_check,
        sampler_check,
    )

    say("loading the trainer")
    probe = load(config, replace(parallel, rank=0, world_size=1))
    say("the gradient of each sample alone")
    batches = probe.batches(batch.samples, drift)
    try:
        expected, checks = differentiate_alone(probe, batches), []
    except LossFunctionError as error:
        raise ConfigError("trainer.loss", str(error)) from error
    for cut in cuts(batch.samples, probe.row_tokens, config.seed):
        say(cut.name)
        checks.append(cut_check(probe, batches, cut, expected))
    say("log-probs")
    return [*checks, sampler_check(probe, batch.sampled), packing_check(probe, batch.samples)], expected


def load(config: RLConfig, parallel: "Parallel") -> "Probe":
    """The trainer as the run would start it."""
    from braidrl.trainer.verify.probe import Probe

    try:
        return Probe.load(config.trainer, parallel)
    except (OSError, ValueError) as error:
        raise ConfigError("trainer", str(error)) from error


def show(config: RLConfig, batch: "VerifyInputs", checks: "Sequence[Check]") -> None:
    """A line a check, and what to do about those that failed."""
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
    """What was measured, a relative difference in brackets after the absolute one."""
    for name, value in check.figures.items():
        what, _, kind = name.partition("_")
        if kind == "absolute":
            yield f"{what} {value:.1e} ({check.figures[f'{what}_relative']:.1e})"
        elif kind != "relative":
            yield f"{name.replace('_', ' ')} {value:.1e}"


def report(config: RLConfig, batch: "VerifyInputs", checks: "Sequence[Check]") -> dict[str, Any]:
    """The same for machines. A figure that is not finite is a string, for JSON has no number for it."""
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
