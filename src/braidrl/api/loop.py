"""The loop in your own hands: sample, score, train step, publish."""

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
from braidrl.api.start import by_hand, open_folder, options_of
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
    """A strictly on-policy run whose steps you take: the trainer is in this process, inference servers are its
    children, and environments run in a thread beside it, so that it works in a notebook too.

        with braidrl.Loop(config) as loop:
            for _ in range(20):
                batch = loop.score(loop.sample())
                print(loop.train_step(batch)["loss"])
                loop.publish()

    Leaving the context, `close` and the end of the program stop everything. Its run folder is that of any run
    (`braid report`, `braid eval`), without checkpoints. Evaluation sources are played when their version is published.

    Args:
        config: as of `braidrl.run`. `max_steps` bounds the train steps, and is what the learning rate is scheduled
            over; `orchestrator.max_off_policy_steps` is 0 here, whatever it says.
        clean: remove what lies in `output_dir` first.
        verbose: write debug messages to the logs.

    Raises what `braidrl.run` raises, and `ConfigError` for what one process cannot do (several trainer ranks, Ray,
    `share_device`, weights that travel by NCCL).
    """

    def __init__(self, config: Config, *, clean: bool = False, verbose: bool = False) -> None:
        given, options = read(config), options_of(False, clean, False, verbose)
        given.config = by_hand(given.config)
        self.config, folder, _ = open_folder(given, options)
        """The resolved config."""
        self.run = Run(folder.root)
        """What the run folder tells."""
        self.steps = 0
        """Train steps taken."""
        self._folder = folder
        with ExitStack() as stack:
            stack.enter_context(recorded(folder))
            stack.enter_context(tracking(self.config.tracker, folder))
            slots = self._serve(stack, verbose)
            self.learner = self._learner(next(slot for slot in slots if slot.kind == "trainer"))
            """The model that is trained (`learner.model`), its optimizer and its loss."""
            self._metrics = MetricsWriter(folder.metrics("trainer"))
            self._background = Background()
            stack.callback(self._background.close)
            self._pipeline = Pipeline(
                load_config(OrchestratorConfig, ["@", str(folder.configs / "orchestrator.toml")])
            )
            self._living: Future[None] = self._background.start(self._pipeline.live())
            stack.callback(self._end_pipeline)
            self._call(self._pipeline.opened())
            atexit.register(self.close)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        atexit.unregister(self.close)
        self._stack.__exit__(*error)

    def close(self) -> None:
        """Stop everything. Once is enough."""
        self.__exit__(None, None, None)

    # -- the verbs

    @property
    def version(self) -> int:
        """The policy version that is served."""
        return self._pipeline.orchestrator.policy.version

    def sample(self) -> list[Group]:
        """One batch of finished episodes of the served policy, in groups of a task each.

        `group.task` is the verifiers task, `group.episodes` its verifiers episodes (`episode.traces[0].reward`).
        Failures are episodes with errors. Raises `RuntimeError` after `max_steps` batches.
        """
        if self._pipeline.batches >= self.config.max_steps:
            raise RuntimeError(
                f"all {self.config.max_steps} batches of the loop were scored; raise max_steps"
            )
        return self._call(self._pipeline.sample())

    def score(self, groups: Sequence[Group]) -> TrainingBatch:
        """Credit: the algorithms of the sources give every sampled token its advantage and weights.

        Returns the samples that carry signal; their arrays (`advantages`, `rl_weights`, ...: float32[T]) may be changed
        before the train step. Groups may be left out, and are scored once.
        """
        return self._call(self._pipeline.score(groups)).training_batch

    def train_step(self, batch: TrainingBatch) -> dict[str, float]:
        """Take an optimizer step on the batch; returns the trainer's metrics (docs/metrics.md).

        Raises `RuntimeError` after `max_steps`, and `NonFiniteError` before a step that would spoil the weights.
        """
        if self.steps >= self.config.max_steps:
            raise RuntimeError(f"all {self.config.max_steps} steps of the loop were taken; raise max_steps")
        step = self.steps + 1
        recorder = TokenRecorder(batch.samples, self.config.trainer.recorded_tokens, self.learner.parallel)
        metrics = self.learner.step(step, batch.samples, recorder) | staleness_metrics(step, batch.samples)
        recorder.write(self._folder.token_records(step), step)
        self._metrics.log(step, metrics)
        self.steps = step
        return metrics

    def publish(self) -> int:
        """Have inference serve the weights as they are; returns their version, which is the number of the last step.

        Waits, at most `orchestrator.policy_timeout`, until every server has them.
        """
        if self.version < self.steps:
            if not self._folder.weights(self.steps).exists():  # an interrupt may have ended the wait for it
                self.learner.publish(self._folder, self.steps)
            self._call(self._pipeline.follow(self.steps))
        return self.version

    # -- helpers

    def _serve(self, stack: ExitStack, verbose: bool) -> list[Slot]:
        """Start the inference servers; all slots of the run."""
        self._folder.configs.mkdir(parents=True, exist_ok=True)
        (self._folder.configs / "rl.toml").write_text(resolved_toml(self.config))
        slots = plan(self.config, machines_of(self.config))
        launcher = open_launcher(self.config, slots)
        wiring = Wiring(self.config, self._folder, launcher, slots, 0, verbose)
        self._supervisor = stack.enter_context(Supervisor(launcher, wiring.renew))
        for process in wiring.processes():
            if not process.ends:
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
            learner.publish(self._folder, 0)  # engines load the model without an adapter
        return learner

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._background.call(work, self._check)

    def _check(self) -> None:
        """Raise what makes waiting vain: a dead server, or a failure of the data plane."""
        self._supervisor.check()
        if self._living.done():
            self._living.result()

    def _end_pipeline(self) -> None:
        self._background.start(self._pipeline.close())
        wait({self._living}, STOP_SECONDS)
        self._living.cancel()
