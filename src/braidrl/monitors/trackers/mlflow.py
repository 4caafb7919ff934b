"""MLflow tracker."""

import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from braidrl.configs.trackers import MLflowTrackerConfig
from braidrl.monitors.trackers.contract import Tracked

# MLflow reads this when it is imported. The file store needs neither a server nor a database.
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.utils.validation import MAX_METRICS_PER_BATCH, MAX_PARAM_VAL_LENGTH, MAX_PARAMS_TAGS_PER_BATCH

ID_TAG = "braid.id"
ENDS = {"done": "FINISHED", "interrupted": "KILLED", "killed": "KILLED"}
"""MLflow's run status for each outcome; FAILED for all others."""


class MLflowTracker:
    """Run of an MLflow experiment. A resumed Braid run continues the same MLflow run."""

    def __init__(self, config: MLflowTrackerConfig, tracked: Tracked) -> None:
        files = (tracked.folder / "mlruns").absolute()
        self.client = MlflowClient(
            tracking_uri=config.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or files.as_uri()
        )
        experiment = self.client.get_experiment_by_name(config.experiment)
        experiment_id = (
            self.client.create_experiment(config.experiment)
            if experiment is None
            else experiment.experiment_id
        )
        earlier = self._find_run(experiment_id, tracked) if tracked.after else None
        self.run: str = earlier or self._create_run(experiment_id, config, tracked)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        points = [Metric(_metric(name), value, now, step) for name, value in metrics.items()]
        for start in range(0, len(points), MAX_METRICS_PER_BATCH):  # the client rejects larger batches
            self.client.log_batch(self.run, metrics=points[start : start + MAX_METRICS_PER_BATCH])

    def close(self, status: str) -> None:
        self.client.set_terminated(self.run, ENDS.get(status, "FAILED"))

    def _create_run(self, experiment_id: str, config: MLflowTrackerConfig, tracked: Tracked) -> str:
        tags = {ID_TAG: tracked.id}
        name = config.name or tracked.name
        run = self.client.create_run(experiment_id, run_name=name, tags=tags).info.run_id
        params = [Param(key, value[:MAX_PARAM_VAL_LENGTH]) for key, value in _flat(tracked.settings)]
        for start in range(0, len(params), MAX_PARAMS_TAGS_PER_BATCH):
            self.client.log_batch(run, params=params[start : start + MAX_PARAMS_TAGS_PER_BATCH])
        return run

    def _find_run(self, experiment_id: str, tracked: Tracked) -> str | None:
        found = self.client.search_runs([experiment_id], f"tags.`{ID_TAG}` = '{tracked.id}'", max_results=1)
        return found[0].info.run_id if found else None


def _flat(settings: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested settings as pairs of dotted key and value."""
    pairs = settings.items() if isinstance(settings, Mapping) else enumerate(settings)
    for key, value in pairs:
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) or (
            isinstance(value, list) and any(isinstance(v, Mapping) for v in value)
        ):
            yield from _flat(value, path)
        else:
            yield _allowed(path), str(value)


def _metric(name: str) -> str:
    """Return a metric name with at most one slash.

    The file store writes a file per metric and a folder per slash, so `loss` and `loss/rl` would collide.
    """
    section, slash, rest = name.partition("/")
    return section + slash + _allowed(rest).replace("/", ".")


def _allowed(name: str) -> str:
    """Replace characters that MLflow does not allow in names."""
    return re.sub(r"[^\w\-. /]", "_", name.replace("@", "_at_"))
