"""Training batches on their way from the orchestrator to the trainer: one published file a step."""

import logging
import time
from pathlib import Path

import msgspec

from braidrl.transport.types import TrainingBatch, decode_batch, encode
from braidrl.utils.publish import publish_bytes
from braidrl.utils.run_folder import RunFolder

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.02


class BatchWriter:
    """The orchestrator's end."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    def publish(self, batch: TrainingBatch) -> Path:
        """Publish the batch of `batch.step`; returns its file."""
        path = self.run.batch(batch.step)
        publish_bytes(path, encode(batch))
        return path


class BatchReader:
    """The trainer's end. A batch stays until `remove`, so that a step which crashed can be done again."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    def receive(self, step: int, *, timeout: float, heartbeat: float = 30.0) -> TrainingBatch:
        """Wait for the batch of `step`, at most `timeout` seconds, with a log line every `heartbeat` seconds.

        Raises `TimeoutError` when it does not come and `ValueError` when the file is not that batch.
        """
        path = self.run.batch(step)
        self._wait(path, f"the batch of step {step}", timeout, heartbeat)
        try:
            batch = decode_batch(path.read_bytes())
        # the decoder's array hook raises ValueError, IndexError or KeyError on bytes that are no array
        except (msgspec.MsgspecError, ValueError, IndexError) as error:
            raise ValueError(
                f"{path} is not a training batch ({error}); it is published whole, so the disk or another "
                f"writer damaged it: remove it and resume the run from its last checkpoint"
            ) from error
        if batch.step != step:
            raise ValueError(
                f"{path} holds the batch of step {batch.step}, required is step {step}; remove it"
            )
        return batch

    def remove(self, step: int) -> None:
        """Remove the batch of `step`, once the weights that it made are published."""
        self.run.batch(step).unlink(missing_ok=True)

    def _wait(self, path: Path, what: str, timeout: float, heartbeat: float) -> None:
        start = beat = time.monotonic()
        while not path.exists():
            now = time.monotonic()
            if now - start >= timeout:
                raise TimeoutError(
                    f"{what} did not come within {timeout:g} s ({path}); look at "
                    f"{self.run.log('orchestrator')} for what the orchestrator waits for, or raise "
                    f"trainer.batch_timeout"
                )
            if now - beat >= heartbeat:
                beat = now
                logger.info("waiting for %s since %.0f s (%s)", what, now - start, path)
            time.sleep(POLL_SECONDS)
