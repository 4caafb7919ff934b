"""Sources of a run: a verifiers environment, the model its agents use, and a deadline for each episode."""

import asyncio
import itertools
import logging
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import verifiers.v1 as vf
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.episode import EnvInfo
from verifiers.v1.trace import Error, Trace, TraceTask
from verifiers.v1.types import Sampling
from verifiers.v1.utils.loaders import load_environment

from braidrl.configs.environment import resolve_env
from braidrl.configs.eval import EvalSourceConfig
from braidrl.configs.orchestrator import OrchestratorConfig, TrainSourceConfig
from braidrl.orchestrator.envs.episodes import EpisodeRun, LocalEpisodeRun, OnTrace
from braidrl.orchestrator.envs.estimates import YieldEstimate
from braidrl.orchestrator.envs.worker_pool import RemoteEpisodeRun, Workers
from braidrl.orchestrator.gateway.server import Gateway
from braidrl.orchestrator.gateway.sessions import Spans, derive_seed
from braidrl.orchestrator.train.algo import Algorithm, make_algorithm
from braidrl.orchestrator.train.curriculum import Curriculum
from braidrl.orchestrator.train.samples import token_versions
from braidrl.orchestrator.train.topk import Heads
from braidrl.orchestrator.train.turns import Turn, TurnReader, pool_of
from braidrl.utils.renderer import fitting, note_choice, renderer_options
from braidrl.utils.run_folder import RunFolder

logger = logging.getLogger(__name__)

CLEANUP_SECONDS = 10.0
"""Maximum seconds to wait for the cleanup of a cancelled episode. After that it is abandoned with a warning."""


@dataclass
class FinishedEpisode:
    """An episode that has ended, with or without an error."""

    key: str
    """Deterministic name of the episode in the run, from which its seeds are derived."""
    episode: vf.Episode
    spans: dict[str, list[Spans]] = field(default_factory=dict)
    """Policy versions by trace id, one entry per model call in call order."""
    heads: dict[str, Heads] = field(default_factory=dict)
    """Captured heads by trace id. Empty if none are captured."""
    seconds: float = 0.0
    """Wall time of generation and scoring in seconds."""
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    """Turns of each trainable trace by trace id: each was merged with the previous turn, or rendered again. Empty for
    failed episodes and evaluations."""

    def versions(self, trace_id: str) -> list[int]:
        """Return the policy version of every sampled token of a trace, in message order. Empty for a frozen source."""
        traces = (trace for trace in self.episode.traces if trace.id == trace_id)
        return [
            version for trace in traces for version in token_versions(trace, self.spans.get(trace_id, ()))
        ]

    @property
    def oldest(self) -> int | None:
        """Oldest policy version that sampled a token of the episode; None for a frozen source."""
        calls = itertools.chain.from_iterable(self.spans.values())
        return min((version for spans in calls for version, _ in spans), default=None)

    @property
    def error(self) -> str | None:
        """Last error of the episode; None if there is none."""
        if self.episode.ok:
            return None
        errors = [*self.episode.errors, *(error for trace in self.episode.traces for error in trace.errors)]
        return f"{errors[-1].type}: {errors[-1].message}" if errors else "the episode did not complete"


class SourceEnv:
    """A configured verifiers environment whose agents call the gateway."""

    def __init__(
        self,
        source: TrainSourceConfig | EvalSourceConfig,
        config: OrchestratorConfig,
        gateway: Gateway,
        *,
        model: str,
        sampling: dict[str, float | int],
        temperature: float | None,
        head_size: int | None = None,
    ) -> None:
        env_config = resolve_env(source.env)
        self.source = source
        self.name = source.name or env_config.env_id
        self.gateway = gateway
        self.temperature = temperature
        self.head_size = head_size
        """Number of most likely tokens to capture per token sampled by a trainable agent; None to capture none."""
        self.env = load_environment(env_config)
        client = TrainClientConfig(
            base_url=f"{gateway.url}/v1",
            # not verifiers' default variable: the key of another service must not be sent to the gateway
            api_key_var=config.client.api_key_var or "BRAID_NO_API_KEY",
            renderer=renderer_options(config.renderer),
            renderer_model_name=config.model.path,
        )
        self.context = vf.ModelContext(model=model, client=client, sampling=Sampling.model_validate(sampling))
        self.workers: Workers | None = None
        """Worker processes that run the episodes; None to run them in this process."""
        if source.workers:
            self.workers = Workers(self.name, env_config, source.workers, RunFolder(config.output_dir).logs)
            gateway.expect_late_traces()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Start the shared servers of the environment, or its workers, which start their own, and stop them on exit.

        Episodes may run only while the context is open.
        """
        async with self.env.serving() if self.workers is None else self.workers.serving():
            yield

    def episode_run(self, task: vf.Task) -> EpisodeRun:
        """Return an episode of `task` that has not started yet."""
        return (
            LocalEpisodeRun(self.env, task) if self.workers is None else RemoteEpisodeRun(self.workers, task)
        )

    async def run(self, task: vf.Task, key: str) -> FinishedEpisode:
        """Run one episode of `task` with one deadline for generation and scoring together.

        A failure is not raised but recorded in the returned episode. Only cancellation is raised, after the episode has
        cleaned up.
        """
        episode_run = self.episode_run(task)
        sessions: list[str] = []
        started = time.perf_counter()
        running = asyncio.create_task(episode_run.run(self.context, self._on_trace(key, sessions)))
        try:
            done, _ = await asyncio.wait({running}, timeout=self.source.timeout)
            conclude = self._conclude if done else self._expire
            episode = await conclude(running, episode_run)
            episode.env.name = self.name
        finally:
            await _cancel(running, key)
            taken = {trace_id: self.gateway.take_session(trace_id) for trace_id in sessions}
        known = {trace_id: session for trace_id, session in taken.items() if session is not None}
        spans = {trace_id: session.answered() for trace_id, session in known.items()}
        heads: dict[str, Heads] = {trace_id: session.heads for trace_id, session in known.items()}
        return FinishedEpisode(key, episode, spans, heads, time.perf_counter() - started)

    def _on_trace(self, key: str, sessions: list[str]) -> OnTrace:
        """Return a callback that opens the session `KEY/AGENT/NUMBER` of each trace and adds its id to `sessions`."""
        counts: Counter[str] = Counter()

        def on_trace(trace_id: str, agent: str, trainable: bool) -> None:
            temperature, head_size = (self.temperature, self.head_size) if trainable else (None, None)
            self.gateway.open_session(trace_id, f"{key}/{agent}/{counts[agent]}", temperature, head_size)
            counts[agent] += 1
            sessions.append(trace_id)

        return on_trace

    async def _conclude(self, running: "asyncio.Task[vf.Episode]", episode_run: EpisodeRun) -> vf.Episode:
        """Return the episode of a task that has ended, or a failed one if it raised."""
        try:
            return running.result()
        except (Exception, asyncio.CancelledError) as error:
            logger.warning("environment %s raised", self.name, exc_info=True)
            return self._failed(episode_run.task, error, episode_run.traces)

    async def _expire(self, running: asyncio.Task, episode_run: EpisodeRun) -> vf.Episode:
        """Cancel an episode that exceeded its deadline, and return it as failed."""
        traces = episode_run.traces
        await _cancel(running, self.name)
        for trace in traces:
            trace.ok = False  # verifiers marks a rollout as ok if it is cancelled during scoring
        error = TimeoutError(
            f"the episode was not generated and scored within {self.source.timeout:g} s; shorten it, or raise the "
            f"timeout of source {self.name!r}"
        )
        episode = self._failed(episode_run.task, error, traces)
        episode.is_timeout = True
        return episode

    def _failed(self, task: vf.Task, error: BaseException, traces: Sequence[Trace]) -> vf.Episode:
        """Return a failed episode with the traces so far, in place of one that verifiers did not return."""
        text = "".join(traceback.format_exception(error))
        return vf.Episode(
            env=EnvInfo(id=self.env.config.env_id),
            task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            errors=[Error(type=type(error).__name__, message=str(error), traceback=text)],
            traces=list(traces),
        )


class TrainEnv(SourceEnv):
    """Training source: an environment with its algorithm and curriculum."""

    source: TrainSourceConfig

    def __init__(self, source: TrainSourceConfig, config: OrchestratorConfig, gateway: Gateway) -> None:
        frozen = source.algo.sampling.source
        self.live = frozen == "policy"
        super().__init__(
            source,
            config,
            gateway,
            model=config.model.path if frozen == "policy" else frozen.name,
            sampling=source.sampling.model_dump(),
            temperature=source.sampling.temperature,
            head_size=config.train.capture_head if self.live and source.algo.rl_aggregation else None,
        )
        self.algorithm: Algorithm = make_algorithm(source.algo, gateway)
        seed = derive_seed(config.seed, "curriculum", self.name)
        self.curriculum = Curriculum(source.curriculum, self.env.taskset, seed)
        self.yield_estimate = YieldEstimate(tokens_per_trace=config.seq_len)
        self._turns = TurnReader(self.name, config.model.path, config.renderer)

    async def run(self, task: vf.Task, key: str) -> FinishedEpisode:
        """Run one episode as `SourceEnv.run` does, and read the turns of its trainable traces if it has no error."""
        finished = await super().run(task, key)
        if finished.error is None:
            traces = (trace for trace in finished.episode.traces if trace.agent.trainable)
            finished.turns = {trace.id: await self._turns.read(trace) for trace in traces}
        return finished

    @property
    def min_survivors(self) -> int:
        """Minimum number of episodes without error that a group needs to have advantages."""
        return min(2, self.source.group_size) if self.source.algo.needs_siblings else 1


class EvalEnv(SourceEnv):
    """Evaluation source: an environment and the first `num_tasks` tasks of its taskset."""

    source: EvalSourceConfig

    def __init__(
        self,
        source: EvalSourceConfig,
        config: OrchestratorConfig,
        gateway: Gateway,
        model: str | None = None,
    ) -> None:
        """`model`: name of the evaluated model in the gateway; None for the policy."""
        model, sampling = model or config.model.path, source.sampling.model_dump()
        super().__init__(source, config, gateway, model=model, sampling=sampling, temperature=None)
        if not gateway.pools[model].takes_tokens:
            self.context = self._message_context()
        taskset = self.env.taskset
        if source.num_tasks is None and not taskset.bounded:
            raise ValueError(
                f"the taskset of eval source {self.name!r} is infinite, but an evaluation needs a finite number of "
                "tasks; set its num_tasks"
            )
        self.tasks: list[vf.Task] = list(itertools.islice(iter(taskset), source.num_tasks))
        if not self.tasks:
            raise ValueError(f"the taskset of eval source {self.name!r} has no tasks; widen its selection")

    def _message_context(self) -> vf.ModelContext:
        """Return the context for a server that renders messages itself. The traces then have no tokens."""
        token_client = self.context.client
        client = vf.EvalClientConfig(base_url=token_client.base_url, api_key_var=token_client.api_key_var)
        sampling = Sampling.model_validate(self.source.sampling.unusual())
        return vf.ModelContext(model=self.context.model, client=client, sampling=sampling)


async def warm_renderer(config: OrchestratorConfig) -> None:
    """Load the renderer that all environments share, so that an invalid one fails before the first episode."""
    with fitting(config.model.path, config.renderer):
        slot = await pool_of(config.model.path, config.renderer).grow()
    note_choice(slot.renderer, config.model.path, config.renderer)


async def _cancel(task: asyncio.Task, name: str) -> None:
    """Cancel a task that still runs, and wait for its cleanup."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait({task}, timeout=CLEANUP_SECONDS)
    if not task.done():
        logger.warning(
            "abandoning episode %s: it did not end within %g s after it was cancelled", name, CLEANUP_SECONDS
        )
