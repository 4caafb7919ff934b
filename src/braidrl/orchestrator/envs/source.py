"""Environments of the run: a verifiers environment, the model that plays it, a deadline for each episode."""

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
"""Longest wait for an episode to clean up after it was cancelled; then it is left behind and logged."""


@dataclass
class FinishedEpisode:
    """One episode that ran to its end, whatever the end was."""

    key: str
    """Its name in the run, from which its seeds derive."""
    episode: vf.Episode
    spans: dict[str, list[Spans]] = field(default_factory=dict)
    """Policy versions by trace id: one entry a model call, in call order."""
    heads: dict[str, Heads] = field(default_factory=dict)
    """Captured heads by trace id; nothing where none are captured."""
    seconds: float = 0.0
    """Wall time of generation and scoring."""
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    """How the turns of each trainable trace hang together, by trace id; nothing where no one reads them."""

    def versions(self, trace_id: str) -> list[int]:
        """Policy version of every token that the trace sampled, in the order of its messages; none for a frozen
        source."""
        traces = (trace for trace in self.episode.traces if trace.id == trace_id)
        return [
            version for trace in traces for version in token_versions(trace, self.spans.get(trace_id, ()))
        ]

    @property
    def oldest(self) -> int | None:
        """Oldest policy version that sampled a token of it; None for a frozen source."""
        calls = itertools.chain.from_iterable(self.spans.values())
        return min((version for spans in calls for version, _ in spans), default=None)

    @property
    def error(self) -> str | None:
        """What went wrong last; None when nothing did."""
        if self.episode.ok:
            return None
        errors = [*self.episode.errors, *(error for trace in self.episode.traces for error in trace.errors)]
        return f"{errors[-1].type}: {errors[-1].message}" if errors else "the episode did not complete"


class SourceEnv:
    """A configured verifiers environment whose agents talk to the gateway."""

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
        """Most likely tokens to capture at each one that a trainable agent samples; None: none."""
        self.env = load_environment(env_config)
        client = TrainClientConfig(
            base_url=f"{gateway.url}/v1",
            # never the default variable: the key of another service must not travel to the gateway
            api_key_var=config.client.api_key_var or "BRAID_NO_API_KEY",
            renderer=renderer_options(config.renderer),
            renderer_model_name=config.model.path,
        )
        self.context = vf.ModelContext(model=model, client=client, sampling=Sampling.model_validate(sampling))
        self.workers: Workers | None = None
        """The processes that play its episodes; None: this one does."""
        if source.workers:
            self.workers = Workers(self.name, env_config, source.workers, RunFolder(config.output_dir).logs)
            gateway.sessions.late = True

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Hold the environment's shared servers, or its workers, which hold their own; episodes run inside."""
        async with self.env.serving() if self.workers is None else self.workers.serving():
            yield

    def play(self, task: vf.Task) -> EpisodeRun:
        """An episode that is yet to be run."""
        return (
            LocalEpisodeRun(self.env, task) if self.workers is None else RemoteEpisodeRun(self.workers, task)
        )

    async def run(self, task: vf.Task, key: str) -> FinishedEpisode:
        """Run one episode of `task` under one deadline over generation and scoring.

        Every failure is data: the episode comes back with its error. Only cancellation is raised, after the
        episode has cleaned up.
        """
        play = self.play(task)
        sessions: list[str] = []
        started = time.perf_counter()
        running = asyncio.create_task(play.run(self.context, self._name(key, sessions)))
        try:
            done, _ = await asyncio.wait({running}, timeout=self.source.timeout)
            episode = await self._conclude(running, play) if done else await self._expire(running, play)
            episode.env.name = self.name
        finally:
            await _cancel(running, key)
            taken = {trace_id: self.gateway.take_session(trace_id) for trace_id in sessions}
        known = {trace_id: session for trace_id, session in taken.items() if session is not None}
        spans = {trace_id: session.answered() for trace_id, session in known.items()}
        heads: dict[str, Heads] = {trace_id: session.heads for trace_id, session in known.items()}
        return FinishedEpisode(key, episode, spans, heads, time.perf_counter() - started)

    def _name(self, key: str, sessions: list[str]) -> OnTrace:
        """A hook that names each trace: by agent, and by number among its own."""
        minted: Counter[str] = Counter()

        def on_trace(trace_id: str, agent: str, trainable: bool) -> None:
            temperature, head_size = (self.temperature, self.head_size) if trainable else (None, None)
            self.gateway.open_session(trace_id, f"{key}/{agent}/{minted[agent]}", temperature, head_size)
            minted[agent] += 1
            sessions.append(trace_id)

        return on_trace

    async def _conclude(self, running: "asyncio.Task[vf.Episode]", play: EpisodeRun) -> vf.Episode:
        try:
            return running.result()
        except (Exception, asyncio.CancelledError) as error:
            logger.warning("environment %s raised", self.name, exc_info=True)
            return self._failed(play.task, error, play.traces)

    async def _expire(self, running: asyncio.Task, play: EpisodeRun) -> vf.Episode:
        traces = play.traces
        await _cancel(running, self.name)
        for trace in traces:
            trace.ok = False  # a rollout that is cancelled while it is scored concludes as if all were well
        error = TimeoutError(
            f"the episode was not generated and scored within {self.source.timeout:g} s (timeout of source "
            f"{self.name!r})"
        )
        episode = self._failed(play.task, error, traces)
        episode.is_timeout = True
        return episode

    def _failed(self, task: vf.Task, error: BaseException, traces: Sequence[Trace]) -> vf.Episode:
        """The episode that verifiers did not hand out, with what it had got to."""
        text = "".join(traceback.format_exception(error))
        return vf.Episode(
            env=EnvInfo(id=self.env.config.env_id),
            task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            errors=[Error(type=type(error).__name__, message=str(error), traceback=text)],
            traces=list(traces),
        )


class TrainEnv(SourceEnv):
    """A training source: its environment, its algorithm, its curriculum."""

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
        self.yields = YieldEstimate(tokens_per_trace=config.seq_len)
        self._turns = TurnReader(self.name, config.model.path, config.renderer)

    async def run(self, task: vf.Task, key: str) -> FinishedEpisode:
        """The same, and how the turns of an episode that went well hang together."""
        finished = await super().run(task, key)
        if finished.error is None:
            traces = (trace for trace in finished.episode.traces if trace.agent.trainable)
            finished.turns = {trace.id: await self._turns.read(trace) for trace in traces}
        return finished

    @property
    def needed(self) -> int:
        """Fewest episodes of a group that can carry signal."""
        return min(2, self.source.group_size) if self.source.algo.needs_siblings else 1


class EvalEnv(SourceEnv):
    """An evaluation source: the first tasks of its taskset."""

    source: EvalSourceConfig

    def __init__(
        self,
        source: EvalSourceConfig,
        config: OrchestratorConfig,
        gateway: Gateway,
        model: str | None = None,
    ) -> None:
        """`model`: its name behind the gateway; None: that of the policy."""
        model, sampling = model or config.model.path, source.sampling.model_dump()
        super().__init__(source, config, gateway, model=model, sampling=sampling, temperature=None)
        if not gateway.pools[model].takes_tokens:
            self.context = self._in_messages()
        taskset = self.env.taskset
        if source.num_tasks is None and not taskset.bounded:
            raise ValueError(f"the taskset of eval source {self.name!r} is infinite; set its num_tasks")
        self.tasks: list[vf.Task] = list(itertools.islice(iter(taskset), source.num_tasks))
        if not self.tasks:
            raise ValueError(f"the taskset of eval source {self.name!r} has no tasks; loosen what it selects")

    def _in_messages(self) -> vf.ModelContext:
        """The context of agents whose server renders messages itself, so that their traces have no tokens."""
        with_tokens = self.context.client
        client = vf.EvalClientConfig(base_url=with_tokens.base_url, api_key_var=with_tokens.api_key_var)
        sampling = Sampling.model_validate(self.source.sampling.unusual())
        return vf.ModelContext(model=self.context.model, client=client, sampling=sampling)


async def warm_renderer(config: OrchestratorConfig) -> None:
    """Load the renderer that all environments share, so that a wrong one fails before any episode."""
    with fitting(config.model.path, config.renderer):
        slot = await pool_of(config.model.path, config.renderer).grow()
    note_choice(slot.renderer, config.model.path, config.renderer)


async def _cancel(task: asyncio.Task, name: str) -> None:
    """Cancel what still runs and let it clean up."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait({task}, timeout=CLEANUP_SECONDS)
    if not task.done():
        logger.warning("episode %s does not end although it was cancelled; it is left behind", name)
