"""Experiment trackers that a run also reports to."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from braidrl.configs.core.base import BaseConfig


class BaseTrackerConfig(BaseConfig):
    """What every tracker has."""

    name: str | None = None
    """Name of the run there; None: that of the run folder."""
    metrics: Literal["all", "overview"] = "all"
    """Every metric, or only the few of the overview."""
    close_timeout: float = Field(30.0, gt=0)
    """Seconds that it gets to send the rest when the run has ended, before it is stopped."""


class WandbTrackerConfig(BaseTrackerConfig):
    """Weights & Biases (`pip install 'braidrl[wandb]'`)."""

    type: Literal["wandb"] = "wandb"
    project: str = "braid"
    """Project of the run."""
    entity: str | None = None
    """User or team; None: that of the login."""
    mode: Literal["online", "offline"] | None = None
    """`offline` needs no account: it writes below `trackers/` in the run folder, for `wandb sync`. None: as the
    environment says (`WANDB_MODE`)."""
    group: str | None = None
    """Runs of one group are shown together."""
    tags: list[str] = Field(default_factory=list)
    """Labels of the run."""


class TensorBoardTrackerConfig(BaseTrackerConfig):
    """TensorBoard event files (`pip install 'braidrl[tensorboard]'`); it needs no account and no network."""

    type: Literal["tensorboard"] = "tensorboard"
    folder: Path | None = None
    """Where they are written; None: below `trackers/` in the run folder."""


class MLflowTrackerConfig(BaseTrackerConfig):
    """MLflow (`pip install 'braidrl[mlflow]'`)."""

    type: Literal["mlflow"] = "mlflow"
    experiment: str = "braid"
    """Experiment of the run."""
    tracking_uri: str | None = None
    """Tracking server or database; None: what `MLFLOW_TRACKING_URI` says, or else files below `trackers/` in the run
    folder."""


class CustomTrackerConfig(BaseTrackerConfig):
    """A tracker of your own: a class with the methods of `braidrl.monitors.trackers.contract.Tracker`."""

    type: Literal["custom"] = "custom"
    import_path: str
    """Where the class is: `package.module:Class`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """What it reads from its config."""


TrackerConfig: TypeAlias = Annotated[
    WandbTrackerConfig | TensorBoardTrackerConfig | MLflowTrackerConfig | CustomTrackerConfig,
    Field(discriminator="type"),
]
"""Every tracker's config, told apart by `type`."""


class TrackConfig(BaseConfig):
    """`braid track RUN`: send what a run has reported, and goes on reporting, to an experiment tracker."""

    run: Path
    """The run folder; the first word of the command line."""
    tracker: TrackerConfig
    """The tracker."""


def labels(trackers: Iterable[BaseTrackerConfig]) -> list[str]:
    """What logs call each tracker: its type, numbered from the second of one type on."""
    seen: Counter[str] = Counter()
    found = []
    for tracker in trackers:
        kind = str(getattr(tracker, "type", "custom"))
        seen[kind] += 1
        found.append(kind if seen[kind] == 1 else f"{kind}_{seen[kind]}")
    return found
