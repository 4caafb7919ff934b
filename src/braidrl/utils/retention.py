"""How long checkpoints stay."""

from braidrl.configs.trainer.config import CheckpointConfig
from braidrl.utils.publish import retract_folder
from braidrl.utils.run_folder import RunFolder


def prune_checkpoints(run: RunFolder, config: CheckpointConfig) -> list[int]:
    """Remove the checkpoints, with both halves, that `config` does not keep; returns the steps removed.

    It keeps the newest `keep_last` complete ones and every complete one whose step is a multiple of `keep_every`. A
    checkpoint whose other half is still to come does not count, so the newest complete one always stays.
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
