"""Experiment trackers: a process of its own follows the metrics of a run and sends them to a tracker.

Imports `monitors`, `utils` and `configs`. One module a tracker, each behind the contract in `contract.py`.
Start with `send.py`.
"""

import pkgutil
from importlib import import_module

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.trackers import CustomTrackerConfig, TrackerConfig
from braidrl.monitors.trackers.contract import Tracked, Tracker

MODULES = {"wandb": "WandbTracker", "tensorboard": "TensorBoardTracker", "mlflow": "MLflowTracker"}
"""Modules of this package, and the class of each."""


def open_tracker(config: TrackerConfig, tracked: Tracked) -> Tracker:
    """A tracker at work. Raises `ConfigError` where its library is not installed, or there is no such class, and
    whatever the tracker raises."""
    return tracker_class(config)(config, tracked)


def tracker_class(config: TrackerConfig) -> type:
    """What a config is for. Raises `ConfigError`."""
    if isinstance(config, CustomTrackerConfig):
        try:
            return pkgutil.resolve_name(config.import_path)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                "tracker.import_path",
                f"{config.import_path!r} cannot be imported: {error}; give `package.module:Class`",
            ) from error
    try:
        return getattr(import_module(f"{__name__}.{config.type}"), MODULES[config.type])
    except ModuleNotFoundError as error:
        raise ConfigError(
            "tracker.type",
            f"{config.type} needs the package {error.name!r}: pip install 'braidrl[{config.type}]'",
        ) from error
