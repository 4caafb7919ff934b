"""Plays examples with several seeds, and fails unless each has learnt what it must.

    python examples/check.py grpo opd --seeds 0 1 2

Every figure goes to `results.jsonl` in the output folder; `--table` prints all that stand there.
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
"""Examples whose trained policies another one starts from, or takes as teachers."""
LIMIT_SECONDS = 300.0
"""What the commands of one example and seed may take on two cores, for each run of `RUNS`."""
RUNS = {"difficulty_pool": 2}
"""Runs of `braid rl` that an example compares; the others have one."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help="default: all of them")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output-dir", type=Path, default=Path("outputs/check"))
    parser.add_argument("--table", action="store_true", help="only print the results so far, as Markdown")
    options = parser.parse_args()
    if unknown := set(options.examples) - CRITERIA.keys():
        parser.error(f"no such example: {', '.join(sorted(unknown))}; there are {', '.join(CRITERIA)}")
    results = Results(options.output_dir.resolve())
    if not options.table:
        learnt = [results.get(name, seed) for name in options.examples or CRITERIA for seed in options.seeds]
        print("\n".join(describe(row) for row in learnt))
    print(table(results.rows))
    return 0 if all(passed(row) for row in results.rows.values()) else 1


class Results:
    """What was measured so far, by example and seed; each is played once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "results.jsonl"

    @property
    def rows(self) -> dict[tuple[str, int], dict[str, Any]]:
        """As they stand in the file, which several checks may add to."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return {(row["example"], row["seed"]): row for row in map(json.loads, lines)}

    def get(self, name: str, seed: int) -> dict[str, Any]:
        """Play an example, and first those that it builds on, unless that was done."""
        if (known := self.rows.get((name, seed))) is not None:
            return known
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
    """Whether every figure moved as it must, in time."""
    in_time = row["seconds"] <= LIMIT_SECONDS * RUNS.get(row["example"], 1)
    return in_time and all(measure["learnt"] for measure in row["measures"])


def describe(row: dict[str, Any]) -> str:
    """One line on one example and seed."""
    figures = "; ".join(f"{measure['name']} {_arrow(measure)}" for measure in row["measures"])
    verdict = "learnt" if passed(row) else "FAILED"
    return f"{verdict}: {row['example']}, seed {row['seed']}, {row['seconds']:.0f} s: {figures}"


def table(rows: dict[tuple[str, int], dict[str, Any]]) -> str:
    """All results as a Markdown table: a line a figure, a column a seed."""
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
