"""Run examples with several seeds. Exits with 1 if an example does not meet its learning criteria.

    python examples/check.py grpo opd --seeds 0 1 2

All results are appended to `results.jsonl` in the output folder. `--table` prints that file as a table.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from commands import play
from criteria import CRITERIA

NEEDS = {
    "max_rl": ["grpo"],
    "opd": ["grpo"],
    "sft": ["grpo"],
    "multi_teacher_opd": ["grpo", "max_rl"],
    "mixed": ["grpo"],
}
"""Examples that must run first: their trained policies are the start or the teachers of another example."""
LIMIT_SECONDS = 300.0
"""Maximum duration of one example and seed on two cores, in seconds per run of `braid rl`."""
RUNS = {"difficulty_pool": 2}
"""Number of `braid rl` runs of an example, if more than one."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help="examples to run (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output-dir", type=Path, default=Path("outputs/check"))
    parser.add_argument(
        "--table", action="store_true", help="only print existing results, as a Markdown table"
    )
    options = parser.parse_args()
    if unknown := set(options.examples) - CRITERIA.keys():
        parser.error(f"unknown example: {', '.join(sorted(unknown))}; choose from {', '.join(CRITERIA)}")
    results = Results(options.output_dir.resolve())
    if not options.table:
        learnt = [results.get(name, seed) for name in options.examples or CRITERIA for seed in options.seeds]
        print("\n".join(describe(row) for row in learnt))
    print(table(results.rows))
    return 0 if all(passed(row) for row in results.rows.values()) else 1


class Results:
    """Measured results by example and seed, stored in a file. Each example and seed runs once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "results.jsonl"

    @property
    def rows(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Current rows of the file. They are read again on each access, because other checks may append to it."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return {(row["example"], row["seed"]): row for row in map(json.loads, lines)}

    def get(self, name: str, seed: int) -> dict[str, Any]:
        """Return the result of an example. Run the example and its prerequisites first if they have no result yet."""
        if (existing := self.rows.get((name, seed))) is not None:
            return existing
        for needed in NEEDS.get(name, []):
            self.get(needed, seed)
        folder = self.folder / f"seed_{seed}"
        print(f"{name}, seed {seed} ...", flush=True)
        seconds = play(name, folder, seed)
        measures = [dataclasses.asdict(measure) for measure in CRITERIA[name](folder)]
        row = {"example": name, "seed": seed, "seconds": seconds, "measures": measures}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return row


def passed(row: dict[str, Any]) -> bool:
    """Return True if all criteria are met within the time limit."""
    in_time = row["seconds"] <= LIMIT_SECONDS * RUNS.get(row["example"], 1)
    return in_time and all(measure["learnt"] for measure in row["measures"])


def describe(row: dict[str, Any]) -> str:
    """Return a one-line summary of one example and seed."""
    figures = "; ".join(f"{measure['name']} {_arrow(measure)}" for measure in row["measures"])
    verdict = "learnt" if passed(row) else "FAILED"
    return f"{verdict}: {row['example']}, seed {row['seed']}, {row['seconds']:.0f} s: {figures}"


def table(rows: dict[tuple[str, int], dict[str, Any]]) -> str:
    """Return all results as a Markdown table with one row per measure and one column per seed."""
    seeds = sorted({seed for _, seed in rows})
    lines = [
        f"| example | figure | {' | '.join(f'seed {seed}' for seed in seeds)} | seconds |",
        "|---" * (len(seeds) + 3) + "|",
    ]
    for name in dict.fromkeys(example for example, _ in sorted(rows)):
        played = [rows.get((name, seed)) for seed in seeds]
        seconds = ", ".join("-" if row is None else f"{row['seconds']:.0f}" for row in played)
        first = next(row for row in played if row is not None)
        for index, measure in enumerate(first["measures"]):
            cells = ["-" if row is None else _arrow(row["measures"][index]) for row in played]
            lines.append(f"| `{name}` | {measure['name']} | {' | '.join(cells)} | {seconds} |")
            seconds = ""
    return "\n".join(lines)


def _arrow(measure: dict[str, Any]) -> str:
    mark = "" if measure["learnt"] else " (not learnt)"
    return f"{measure['before']:.3f} -> {measure['after']:.3f}{mark}"


if __name__ == "__main__":
    sys.exit(main())
