"""Configs of experiment trackers."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from braidrl.configs.core.base import BaseConfig


class BaseTrackerConfig(BaseConfig):
    """Base class of all tracker configs."""

    name: str | None = None
    """Name of the run in the tracker. None: the name of the run folder."""
    metrics: Literal["all", "overview"] = "all"
    """Metrics to send: all, or only those of the overview."""
    close_timeout: float = Field(30.0, gt=0)
    """Maximum time in seconds to send the remaining metrics after the run has ended."""


class WandbTrackerConfig(BaseTrackerConfig):
    """Weights & Biases (`pip install 'braidrl[wandb]'`)."""

    type: Literal["wandb"] = "wandb"
    project: str = "braid"
    """Name of the project."""
    entity: str | None = None
    """User or team. None: the default of the login."""
    mode: Literal["online", "offline"] | None = None
    """`offline` requires no account and writes to `trackers/` in the run folder, for `wandb sync`. None: the
    environment variable `WANDB_MODE`."""
    group: str | None = None
    """Group of runs to which the run belongs."""
    tags: list[str] = Field(default_factory=list)
    """Tags of the run."""


class TensorBoardTrackerConfig(BaseTrackerConfig):
    """TensorBoard event files (`pip install 'braidrl[tensorboard]'`). Requires no account or network."""

    type: Literal["tensorboard"] = "tensorboard"
    folder: Path | None = None
    """Folder for event files. None: a folder in `trackers/` of the run folder."""


class MLflowTrackerConfig(BaseTrackerConfig):
    """MLflow (`pip install 'braidrl[mlflow]'`)."""

    type: Literal["mlflow"] = "mlflow"
    experiment: str = "braid"
    """Name of the experiment."""
    tracking_uri: str | None = None
    """URI of the tracking server or database. None: the environment variable `MLFLOW_TRACKING_URI`, or files in
    `trackers/` of the run folder if it is not set."""


class CustomTrackerConfig(BaseTrackerConfig):
    """User-defined tracker: a class with the methods of `braidrl.monitors.trackers.contract.Tracker`."""

    type: Literal["custom"] = "custom"
    import_path: str
    """Import path of the class: `package.module:Class`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the tracker, available in its config."""


TrackerConfig: TypeAlias = Annotated[
    WandbTrackerConfig | TensorBoardTrackerConfig | MLflowTrackerConfig | CustomTrackerConfig,
    Field(discriminator="type"),
]
"""Union of the tracker configs, discriminated by `type`."""


class TrackConfig(BaseConfig):
    """`braid track RUN`: send recorded metrics of a run, and new ones as they appear, to an experiment tracker."""

    run: Path
    """Run folder. First argument of the command line."""
    tracker: TrackerConfig
    """Tracker to send metrics to."""


def labels(trackers: Iterable[BaseTrackerConfig]) -> list[str]:
    """Return the name of each tracker in logs: its type, with a number from the second tracker of a type on."""
    seen: Counter[str] = Counter()
    found = []
    for tracker in trackers:
        kind = str(getattr(tracker, "type", "custom"))
        seen[kind] += 1
        found.append(kind if seen[kind] == 1 else f"{kind}_{seen[kind]}")
    return found
