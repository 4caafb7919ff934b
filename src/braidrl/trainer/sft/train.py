"""`braid sft`: cross-entropy on demonstrations, through the same step as reinforcement learning."""

import logging
import time

from braidrl.configs.sft import SFTConfig
from braidrl.configs.trainer.config import TrainerConfig
from braidrl.monitors.metrics import MetricsWriter
from braidrl.trainer.parallel import data_parallel
from braidrl.trainer.rl.metrics import summary
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.sft.data import Demonstrations
from braidrl.utils.renderer import load_renderer
from braidrl.utils.run_folder import RunFolder

logger = logging.getLogger(__name__)


def train_sft(config: SFTConfig) -> None:
    """Train for `max_steps` steps; the run folder gets metrics and the last step's weights."""
    run = RunFolder(config.output_dir)
    if run.weights(config.max_steps).exists():
        raise FileExistsError(f"{run.weights(config.max_steps)} is trained already; set another output_dir")
    with data_parallel(shard_size=config.parallel.shard_size) as parallel:
        learner = Learner.load(trainer_config(config), parallel)
        demonstrations = Demonstrations(config, load_renderer(config.model.path, config.renderer))
        metrics = MetricsWriter(run.metrics("trainer"))
        if parallel.leads:
            metrics.truncate_after(0)

        for step in range(1, config.max_steps + 1):
            start = time.perf_counter()
            samples = demonstrations.next_batch()
            rendered = time.perf_counter()
            row = learner.step(step, samples)
            row |= {"time/render": rendered - start, "dropped": demonstrations.dropped}
            if parallel.leads:
                metrics.log(step, row)
                logger.info("step %d/%d: %s", step, config.max_steps, summary(row))
        learner.publish(run, config.max_steps)
        logger.info("model saved to %s", run.weights(config.max_steps))


def trainer_config(config: SFTConfig) -> TrainerConfig:
    """The trainer's view of an SFT run: the fields that both have."""
    shared = TrainerConfig.model_fields.keys() & SFTConfig.model_fields.keys()
    return TrainerConfig.model_validate({name: getattr(config, name) for name in shared})
