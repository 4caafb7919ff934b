"""Removal of old checkpoints."""

from braidrl.configs.trainer.config import CheckpointConfig
from braidrl.utils.publish import retract_folder
from braidrl.utils.run_folder import RunFolder


def prune_checkpoints(run: RunFolder, config: CheckpointConfig) -> list[int]:
    """Remove the checkpoints that `config` does not keep, and return their steps.

    Kept are the newest `keep_last` complete checkpoints and every complete one whose step is a multiple of
    `keep_every`. A checkpoint with only one half written does not count, so the newest complete one is never removed.
    """
    complete = run.checkpoints()
    if config.keep_last is None or len(complete) <= config.keep_last:
        return []
    kept = {step for step in complete if config.keep_every and step % config.keep_every == 0}
    oldest = complete[-config.keep_last]
    old = [step for step in run.published("checkpoints") if step < oldest and step not in kept]
    for step in old:
        retract_folder(run.checkpoint(step))
    return old
