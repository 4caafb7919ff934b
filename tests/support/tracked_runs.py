"""A small run for trackers, and the values that TensorBoard reads back."""

from pathlib import Path

from braidrl.configs.trackers import TrackerConfig
from braidrl.monitors.metrics import MetricsWriter
from braidrl.monitors.trackers import tracker_class
from braidrl.monitors.trackers.send import tell, tracked
from braidrl.utils.run_folder import RunFolder

STEPS = 3
TRAINER = {"loss": -0.25, "mismatch_kl": 0.001, "tokens_per_second": 900.0, "grad_norm": 1.5, "lr": 1e-5}
ORCHESTRATOR = {
    "reward/mean": 0.5,
    "reward/std": 0.1,
    "reward/words/mean": 0.75,
    "reward/words/std": 0.1,
    "staleness/mean": 0.5,
    "zero_signal": 0.25,
    "tokens_per_second": 700.0,
}
EVAL = {"eval/held/reward/mean": 0.625, "eval/held/reward/ci95": 0.1, "eval/held/pass@4": 0.875}
GLANCES = {
    "at_a_glance/reward": 0.5,
    "at_a_glance/reward/words": 0.75,
    "at_a_glance/staleness": 0.5,
    "at_a_glance/groups_without_signal": 0.25,
    "at_a_glance/tokens_per_second/sampler": 700.0,
    "at_a_glance/loss": -0.25,
    "at_a_glance/kl": 0.001,
    "at_a_glance/grad_norm": 1.5,
    "at_a_glance/tokens_per_second/trainer": 900.0,
    "at_a_glance/eval/held": 0.625,
}


def write_step(run: RunFolder, step: int) -> None:
    MetricsWriter(run.metrics("orchestrator")).log(step, ORCHESTRATOR)
    MetricsWriter(run.metrics("trainer")).log(step, TRAINER)


def small_run(folder: Path) -> RunFolder:
    """Write a run with a config, three steps and an evaluation."""
    run = RunFolder(folder)
    run.configs.mkdir(parents=True)
    (run.configs / "rl.toml").write_text('max_steps = 3\n[trainer.optim]\nlr = 1e-5\n[model]\npath = "m"\n')
    for step in range(1, STEPS + 1):
        write_step(run, step)
    MetricsWriter(run.metrics("eval")).log(3, EVAL)
    return run


def tell_all(run: RunFolder, config: TrackerConfig, status: str = "done", continues: bool = False) -> None:
    """Send all data of `run` to the tracker of `config`."""
    kept = tracked(run, config.type, continues)
    tell(run, config, tracker_class(config)(config, kept), kept.after, lambda seconds: status)


def series_in_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in tags}
