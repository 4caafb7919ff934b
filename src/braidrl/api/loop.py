"""Training loop driven by the caller: sample, score, train step, publish."""

import atexit
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import Any, Self

import torch

from braidrl.api.background import STOP_SECONDS, Background, Result
from braidrl.api.config import Config, read
from braidrl.api.pipeline import Pipeline
from braidrl.api.runs import Run
from braidrl.api.start import open_folder, options_of, single_process
from braidrl.configs.core.load import load_config
from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.configs.trainer.config import TrainerConfig
from braidrl.launch.contract import Slot
from braidrl.launch.plan import machines_of, plan
from braidrl.launch.run import open_launcher, resolved_toml
from braidrl.launch.supervisor import Supervisor
from braidrl.launch.tracker_processes import tracking
from braidrl.launch.wiring import Wiring
from braidrl.monitors.metrics import MetricsWriter
from braidrl.monitors.record import recorded
from braidrl.orchestrator.pipeline.groups import Group
from braidrl.trainer.parallel import Parallel
from braidrl.trainer.rl.metrics import staleness_metrics
from braidrl.trainer.rl.step import Learner
from braidrl.trainer.rl.token_records import TokenRecorder
from braidrl.transport.types import TrainingBatch


class Loop:
    """Strictly on-policy run whose steps are taken by the caller.

    The trainer runs in this process, inference servers are its children, and environments run in a background thread,
    so it also works in a notebook.

        with braidrl.Loop(config) as loop:
            for _ in range(20):
                batch = loop.score(loop.sample())
                print(loop.train_step(batch)["loss"])
                loop.publish()

    Leaving the context, `close` and the end of the program stop all processes. The run folder has the usual format, for
    `braid report` and `braid eval`, but contains no checkpoints. Evaluations that are due run in `publish`.

    Args:
        config: as for `braidrl.run`. `max_steps` is the maximum number of train steps and the length of the learning
            rate schedule. `orchestrator.max_off_policy_steps` is always 0.
        clean: remove the contents of `output_dir` first.
        verbose: write debug messages to the logs.

    Raises:
        ConfigError: as for `braidrl.run`, or the config requires several processes (several trainer ranks, Ray,
            `share_device`, weight transfer by NCCL).
        ConfigErrors, ProcessFailed, PlacementError: as for `braidrl.run`.
    """

    def __init__(self, config: Config, *, clean: bool = False, verbose: bool = False) -> None:
        given, options = read(config), options_of(False, clean, False, verbose)
        given.config = single_process(given.config)
        self.config, folder, _ = open_folder(given, options)
        """Resolved config."""
        self.run = Run(folder.root)
        """Metrics, rewards, episodes and weights in the run folder."""
        self.steps = 0
        """Number of train steps taken."""
        self._folder = folder
        with ExitStack() as stack:
            stack.enter_context(recorded(folder))
            stack.enter_context(tracking(self.config.tracker, folder))
            slots = self._serve(stack, verbose)
            self.learner = self._learner(next(slot for slot in slots if slot.kind == "trainer"))
            """Trained model (`learner.model`), optimizer and loss."""
            self._metrics = MetricsWriter(folder.metrics("trainer"))
            self._background = Background()
            stack.callback(self._background.close)
            self._pipeline = Pipeline(
                load_config(OrchestratorConfig, ["@", str(folder.configs / "orchestrator.toml")])
            )
            self._pipeline_task: Future[None] = self._background.start(self._pipeline.live())
            stack.callback(self._end_pipeline)
            self._call(self._pipeline.opened())
            atexit.register(self.close)
            # Everything has started: keep it open until `__exit__`. An error above closes it here.
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        atexit.unregister(self.close)
        self._stack.__exit__(*error)

    def close(self) -> None:
        """Stop all processes. May be called several times."""
        self.__exit__(None, None, None)

    # -- steps of the loop

    @property
    def version(self) -> int:
        """Policy version served by inference."""
        return self._pipeline.orchestrator.policy.version

    def sample(self) -> list[Group]:
        """Sample one batch of episodes with the served policy and return them in groups, one per task.

        `group.task` is the verifiers task, `group.episodes` its verifiers episodes (`episode.traces[0].reward`). A
        failed episode contains its errors. Raises `RuntimeError` after `max_steps` batches.
        """
        if self._pipeline.batches >= self.config.max_steps:
            raise RuntimeError(
                f"cannot sample: all {self.config.max_steps} batches were already scored; raise max_steps"
            )
        return self._call(self._pipeline.sample())

    def score(self, groups: Sequence[Group]) -> TrainingBatch:
        """Assign advantages and loss weights to every sampled token with the algorithms of the sources.

        Returns the samples with a training signal. Their arrays (`advantages`, `rl_weights`, ...: float32[T]) may be
        changed before the train step. `groups` may be a subset of the sampled ones.

        Raises `ValueError` for a group that was already scored.
        """
        return self._call(self._pipeline.score(groups)).training_batch

    def train_step(self, batch: TrainingBatch) -> dict[str, float]:
        """Train on the batch and return the metrics of the trainer (docs/metrics.md).

        Raises:
            RuntimeError: all `max_steps` steps were already taken.
            NonFiniteError: log-probs, loss or gradient are not finite. The weights are unchanged.
        """
        if self.steps >= self.config.max_steps:
            raise RuntimeError(
                f"cannot train: all {self.config.max_steps} steps were already taken; raise max_steps"
            )
        step = self.steps + 1
        recorder = TokenRecorder(batch.samples, self.config.trainer.recorded_tokens, self.learner.parallel)
        metrics = self.learner.step(step, batch.samples, recorder) | staleness_metrics(step, batch.samples)
        recorder.write(self._folder.token_records(step), step)
        self._metrics.log(step, metrics)
        self.steps = step
        return metrics

    def publish(self) -> int:
        """Load the current weights into inference and return their version, the number of train steps taken.

        Waits at most `orchestrator.policy_timeout` seconds until every server has loaded them.
        """
        if self.version < self.steps:
            # They exist if an earlier call was interrupted while it waited for the servers.
            if not self._folder.weights(self.steps).exists():
                self.learner.publish(self._folder, self.steps)
            self._call(self._pipeline.follow(self.steps))
        return self.version

    # -- helpers

    def _serve(self, stack: ExitStack, verbose: bool) -> list[Slot]:
        """Start the inference servers and return all slots of the run."""
        self._folder.configs.mkdir(parents=True, exist_ok=True)
        (self._folder.configs / "rl.toml").write_text(resolved_toml(self.config))
        slots = plan(self.config, machines_of(self.config))
        launcher = open_launcher(self.config, slots)
        wiring = Wiring(self.config, self._folder, launcher, slots, 0, verbose)
        self._supervisor = stack.enter_context(Supervisor(launcher, wiring.renew))
        for process in wiring.processes():
            if not process.ends:  # only servers: this process replaces trainer and orchestrator
                self._supervisor.start(process)
        return slots

    def _learner(self, slot: Slot) -> Learner:
        config = load_config(TrainerConfig, ["@", str(self._folder.configs / "trainer.toml")])
        config.threads = slot.threads
        device = torch.device("cpu")
        if torch.cuda.is_available():
            device = torch.device("cuda", slot.devices[0] if slot.devices else 0)
            torch.cuda.set_device(device)
        learner = Learner.load(config, Parallel(0, 1, device))
        if config.lora is not None:
            learner.publish(self._folder, 0)  # servers start without an adapter and load v0 from here
        return learner

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._background.call(work, self._check)

    def _check(self) -> None:
        """Raise if the run can no longer make progress: a server or the pipeline has failed."""
        self._supervisor.check()
        if self._pipeline_task.done():
            self._pipeline_task.result()

    def _end_pipeline(self) -> None:
        self._background.start(self._pipeline.close())
        wait({self._pipeline_task}, STOP_SECONDS)
        self._pipeline_task.cancel()
