"""Weights & Biases tracker."""

from collections.abc import Mapping

import wandb

from braidrl.configs.trackers import WandbTrackerConfig
from braidrl.monitors.trackers.contract import Tracked


class WandbTracker:
    """Run of Weights & Biases. Every metric uses `step` as its x axis, so metrics may arrive out of order."""

    def __init__(self, config: WandbTrackerConfig, tracked: Tracked) -> None:
        tracked.folder.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project=config.project,
            entity=config.entity,
            name=config.name or tracked.name,
            id=tracked.id,
            resume="allow" if tracked.after else None,
            mode=config.mode,
            group=config.group,
            tags=config.tags,
            dir=str(tracked.folder),
            config=dict(tracked.settings),
            settings=wandb.Settings(console="off", disable_git=True),
        )
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log({**metrics, "step": step})

    def close(self, status: str) -> None:
        self.run.finish(exit_code=0 if status == "done" else 1)
        wandb.teardown()  # the background service may still be writing to disk until it is torn down
