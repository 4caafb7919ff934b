"""`braid trainer`: for every step, receive a batch, learn from it, publish the next policy version."""

import logging
import time

from braidrl.configs.trainer.config import TrainerConfig
from braidrl.monitors.metrics import MetricsWriter
from braidrl.trainer.parallel import data_parallel
from braidrl.trainer.rl.metrics import staleness_metrics, summary
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.rl.token_records import TokenRecorder
from braidrl.trainer.state.checkpoint import load_checkpoint, save_checkpoint
from braidrl.transport.rollouts import BatchReader
from braidrl.utils.retention import prune_checkpoints
from braidrl.utils.run_folder import RunFolder

logger = logging.getLogger(__name__)


def train(config: TrainerConfig, resume_step: int | None = None) -> None:
    """Train until `max_steps`, from the base model or from the checkpoint of `resume_step`; then return.

    Raises `TimeoutError` when a batch does not come and `NonFiniteError` when a step cannot be taken.
    """
    run, done = RunFolder(config.output_dir), resume_step or 0
    with data_parallel(shard_size=config.parallel.shard_size) as parallel:
        learner = Learner.load(config, parallel)
        if done:
            _restore(learner, run, done)
        if (done or config.lora is not None) and not run.weights(done).exists():
            learner.publish(run, done)  # v0 too, of an adapter: engines load the model without one
        batches, metrics = BatchReader(run), MetricsWriter(run.metrics("trainer"))
        if parallel.leads:
            metrics.truncate_after(done)
        logger.info(
            "trainer starts after step %d of %d, %d processes", done, config.max_steps, parallel.world_size
        )

        for step in range(done + 1, config.max_steps + 1):
            start = time.perf_counter()
            batch = batches.receive(step, timeout=config.batch_timeout)
            received = time.perf_counter()
            recorder = TokenRecorder(batch.samples, config.recorded_tokens, parallel)
            with learner.on_device():
                row = learner.step(step, batch.samples, recorder) | staleness_metrics(step, batch.samples)
            trained = time.perf_counter()
            saves = config.checkpoint.due(step, config.max_steps)
            learner.publish(run, step, whole=saves)
            row |= {"time/wait": received - start, "time/publish": time.perf_counter() - trained}
            recorder.write(run.token_records(step), step)
            if parallel.leads:
                # only now: until its weights are published, a step that crashed is done again
                batches.remove(step)
                metrics.log(step, row)
                logger.info("step %d/%d: %s", step, config.max_steps, summary(row))
            if saves:
                _save(learner, run, step)
        logger.info("trainer has done all %d steps", config.max_steps)


def _restore(learner: Learner, run: RunFolder, step: int) -> None:
    checkpoint = run.trainer_checkpoint(step)
    load_checkpoint(checkpoint, learner.model, learner.optimizer, learner.parallel, learner.moving_reference)


def _save(learner: Learner, run: RunFolder, step: int) -> None:
    """Save the state after `step`, and remove the checkpoints that need not stay."""
    save_checkpoint(
        run.trainer_checkpoint(step),
        learner.model,
        learner.optimizer,
        step,
        learner.parallel,
        learner.moving_reference,
    )
    if learner.parallel.leads:
        prune_checkpoints(run, learner.config.checkpoint)
