"""Metric names in trackers: a short overview section, then all metrics by process."""

from collections.abc import Iterator, Mapping

from braidrl.monitors.metrics import source_of

GLANCE = "at_a_glance"
"""Section name of the overview. Trackers sort sections alphabetically, so it comes first."""

SHOWN = {
    "orchestrator": {
        "reward/mean": "reward",
        "staleness/mean": "staleness",
        "zero_signal": "groups_without_signal",
        "tokens_per_second": "tokens_per_second/sampler",
    },
    "trainer": {
        "loss": "loss",
        "mismatch_kl": "kl",
        "is_approx_k3_kl": "kl",
        "entropy": "entropy",
        "grad_norm": "grad_norm",
        "tokens_per_second": "tokens_per_second/trainer",
    },
    "eval": {},
}
"""Metrics in the overview and their display names, by process. The mean reward of each source is added."""


def named(process: str, row: Mapping[str, float | None], overview_alone: bool) -> dict[str, float]:
    """Return the metrics to log for a line of metrics, by tracker name. Values that were not finite are omitted."""
    values = {name: value for name, value in row.items() if name != "step" and value is not None}
    found = dict(_overview(process, values))
    if not overview_alone:
        found |= {name if process == "eval" else f"{process}/{name}": value for name, value in values.items()}
    return found


def _overview(process: str, values: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for name, shown in SHOWN[process].items():
        if name in values:
            yield f"{GLANCE}/{shown}", values[name]
    for name, value in values.items():
        if (source := source_of(process, name)) is not None:
            yield f"{GLANCE}/{'eval' if process == 'eval' else 'reward'}/{source}", value
