"""Tables of evaluation results, from a line of `eval.jsonl`."""

from collections.abc import Mapping

from braidrl.report.table import plain_lines

Metrics = Mapping[str, float | None]

ABSENT = "-"


def evaluation_table(metrics: Metrics) -> list[tuple[str, ...]]:
    """Return a header and one row per source: reward ± 95% interval, pass@k, episodes, errors, truncated, tokens."""
    names = [key[len("eval/") : -len("/num")] for key in metrics if key.endswith("/num")]
    passes = sorted({key.rpartition("/pass@")[2] for key in metrics if "/pass@" in key}, key=int)
    columns = [f"pass@{k}" for k in passes]
    rows = [("source", "reward", *columns, "episodes", "errors", "truncated", "tokens")]
    for name in names:
        source = {key: metrics.get(f"eval/{name}/{key}") for key in ("reward/mean", "reward/ci95", *columns)}
        mean, interval = _cell(source["reward/mean"], "{:.3f}"), _cell(source["reward/ci95"], "{:.3f}")
        rows.append(
            (
                name,
                mean if mean == ABSENT else f"{mean} ± {interval}",
                *(_cell(source[column], "{:.3f}") for column in columns),
                *(
                    _cell(metrics.get(f"eval/{name}/{key}"), text)
                    for key, text in (
                        ("num", "{:.0f}"),
                        ("errors", "{:.0f}"),
                        ("truncated", "{:.1%}"),
                        ("tokens/mean", "{:.1f}"),
                    )
                ),
            )
        )
    return rows


def evaluation_lines(metrics: Metrics) -> list[str]:
    """Return the table as lines of plain text."""
    return plain_lines(evaluation_table(metrics))


def _cell(value: float | None, text: str) -> str:
    return ABSENT if value is None else text.format(value)
