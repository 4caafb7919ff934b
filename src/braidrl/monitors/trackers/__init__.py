"""Experiment trackers: a separate process per tracker follows the metrics of a run and uploads them.

Imports `monitors`, `utils` and `configs`. One module per tracker, each implementing the protocol in `contract.py`.
Start with `send.py`.
"""

import pkgutil
from importlib import import_module

from braidrl.configs.core.errors import ConfigError
from braidrl.configs.trackers import CustomTrackerConfig, TrackerConfig
from braidrl.monitors.trackers.contract import Tracked, Tracker

MODULES = {"wandb": "WandbTracker", "tensorboard": "TensorBoardTracker", "mlflow": "MLflowTracker"}
"""Module names in this package and the tracker class in each."""


def open_tracker(config: TrackerConfig, tracked: Tracked) -> Tracker:
    """Create the tracker of a config.

    Raises `ConfigError` if its library is not installed or the class does not exist. Errors of the tracker propagate.
    """
    return tracker_class(config)(config, tracked)


def tracker_class(config: TrackerConfig) -> type:
    """Return the class of a config. Raises `ConfigError` if it cannot be imported."""
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
