"""The orchestrator process: episodes in, batches of training samples out."""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.configs.resolve import resolve_environments
from braidrl.monitors.live import LiveState
from braidrl.monitors.metrics import MetricsWriter
from braidrl.orchestrator import checkpoint
from braidrl.orchestrator.engines.health import engine_queue
from braidrl.orchestrator.engines.policy_watcher import PolicyWatcher
from braidrl.orchestrator.engines.pool import Replicas, connect, policy_key
from braidrl.orchestrator.envs.source import EvalEnv, TrainEnv, warm_renderer
from braidrl.orchestrator.eval import LiveEvaluator
from braidrl.orchestrator.gateway.server import Gateway
from braidrl.orchestrator.heartbeat import heartbeat, share
from braidrl.orchestrator.pipeline.buffer import CollectedBatch
from braidrl.orchestrator.pipeline.concurrency import AdaptiveConcurrency, adapt
from braidrl.orchestrator.pipeline.dispatcher import Dispatcher
from braidrl.orchestrator.pipeline.records import EndedGroups, Ledger, group_records, write_records
from braidrl.orchestrator.pipeline.sink import Sink
from braidrl.transport.rollouts import BatchWriter
from braidrl.utils.process import freeze_gc
from braidrl.utils.run_folder import RunFolder

logger = logging.getLogger(__name__)


def run(config: OrchestratorConfig, resume_step: int | None = None) -> None:
    """Run the orchestrator to its end. `resume_step`: continue after that step's checkpoint."""
    asyncio.run(_until_terminated(config, resume_step))


async def _until_terminated(config: OrchestratorConfig, resume_step: int | None) -> None:
    """SIGTERM ends the run as an interrupt does: episodes are cancelled and their processes stopped."""
    story = asyncio.create_task(orchestrate(config, resume_step, freeze_gc))
    terminated = asyncio.Event()

    def terminate() -> None:
        terminated.set()
        story.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        await story
    except asyncio.CancelledError:
        if terminated.is_set():
            raise SystemExit(128 + signal.SIGTERM) from None
        raise


async def orchestrate(
    config: OrchestratorConfig, resume_step: int | None = None, ready: Callable[[], None] | None = None
) -> None:
    """Ship one batch a step, for `max_steps` steps, and evaluate on the way. Every wait has a deadline.

    `ready` is called when everything is there and work begins.
    """
    done = resume_step or 0
    async with AsyncExitStack() as stack:
        orchestrator = await stack.enter_async_context(open_orchestrator(config, done))
        await orchestrator.start(done)
        if ready is not None:
            ready()
        async with orchestrator.at_work():
            for step in range(done + 1, config.max_steps + 1):
                await orchestrator.step(step)
            await orchestrator.finish()


class Orchestrator:
    """The parts of the orchestrator process, connected, and the order of one step."""

    def __init__(
        self,
        config: OrchestratorConfig,
        gateway: Gateway,
        replicas: Replicas,
        train: list[TrainEnv],
        evals: list[EvalEnv],
    ) -> None:
        self.config = config
        self.run_folder = RunFolder(config.output_dir)
        self.gateway = gateway
        self.batches = BatchWriter(self.run_folder)
        self.metrics = MetricsWriter(self.run_folder.metrics("orchestrator"))
        self.ledger = Ledger(self.run_folder.metrics("groups"))
        self.evaluator = LiveEvaluator(evals, config.eval, self.run_folder, max_steps=config.max_steps)
        self.policy = PolicyWatcher(
            self.run_folder,
            replicas,
            update_timeout=config.gateway.update_timeout,
            restart_timeout=config.client.startup_timeout,
            on_version=self._on_version,
            must_stop=lambda version: bool(self.evaluator.due(version)),
            publishes_start=config.adapter,
        )
        self.sink = Sink(config)
        self.dispatcher = Dispatcher(
            train,
            self.sink,
            lambda: self.policy.version,
            seed=config.seed,
            max_concurrent=config.max_concurrent,
        )

    # -- the story

    async def start(self, done: int) -> None:
        """Restore what a resumed run left, and serve its policy."""
        self.sink.buffer.shipped = done
        if done:
            checkpoint.load(self.run_folder, done, self.dispatcher)
            self.metrics.truncate_after(done)
            self.ledger.truncate_after(done)
            self.evaluator.metrics.truncate_after(done)
            if (missed := self.evaluator.missed(done)) is not None:
                await self.policy.start(missed)
                await self.evaluator.visit(missed)
        await self.policy.start(done)
        for env in self.dispatcher.envs:
            await env.algorithm.setup()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Dispatcher, policy watcher and heartbeat run inside; the first that fails ends the run, and the episodes that
        led there are recorded."""
        beat = heartbeat(lambda: self.dispatcher.progress, self.dispatcher.describe, self._waits)
        jobs = [self.dispatcher.run(), self.policy.run(), beat, share(self.run_folder.live, self._live)]
        if self.config.concurrency == "adaptive":
            jobs.append(self._adapt())
        try:
            async with asyncio.TaskGroup() as group:
                background = [group.create_task(job) for job in jobs]
                yield
                for task in background:
                    task.cancel()
        except BaseExceptionGroup as error:
            with suppress(OSError):  # what ended the run matters more
                await self.record(self.sink.buffer.shipped + 1, self.sink.take_ended())
            raise first_cause(error) from None

    async def step(self, step: int) -> None:
        """Collect, publish, record and report one batch; save the state that the next one starts from."""
        started = time.perf_counter()
        oldest_useful = max(0, step - 1 - self.config.max_off_policy_steps)
        await self.policy.wait_for(oldest_useful, self.config.policy_timeout)
        waited = time.perf_counter() - started
        batch = await self.dispatcher.collect(step)
        saves = checkpoint.due(self.config.checkpoint, step, self.config.max_steps)
        state = checkpoint.capture(step, self.dispatcher) if saves else b""
        ended = self.sink.take_ended()  # now: what ends later is in flight, for all that the state knows
        if self.config.share_device:
            await self.policy.sleep()  # the trainer takes the device when it has the batch
        await asyncio.to_thread(self.batches.publish, batch.training_batch)
        logger.info(
            "step %d: %d traces sampled by %s train v%d -> v%d",
            step,
            len(batch.traces),
            batch.versions,
            step - 1,
            step,
        )
        self.report(batch, {"seconds/step": time.perf_counter() - started, "seconds/policy_wait": waited})
        await self.record(step, ended)
        if saves:
            checkpoint.save(self.run_folder, step, state)

    async def finish(self) -> None:
        """Wait for the last policy and its evaluation, however long that takes."""
        await self.policy.wait_for(self.config.max_steps, self.config.policy_timeout)
        await self.policy.wait_visited(self.config.max_steps)
        logger.info("done: %d steps", self.config.max_steps)

    async def record(self, step: int, ended: EndedGroups) -> None:
        """Write down what has ended while the batch of `step` was collected."""
        self.ledger.write(step, ended.fates)
        await write_records(self.run_folder.train_episodes(step), group_records(ended.groups, step))

    def report(self, batch: CollectedBatch, seconds: dict[str, float]) -> None:
        """Write the line of metrics of a batch."""
        traffic = self.gateway.take_traffic()
        staleness = [trace.staleness(batch.step) for trace in batch.traces]
        tokens = [len(sample.token_ids) for trace in batch.traces for sample in trace.samples]
        metrics = self.sink.take_metrics() | seconds
        metrics["tokens_per_second"] = metrics["tokens/sampled"] / seconds["seconds/step"]
        metrics |= {
            "staleness/mean": sum(staleness) / len(staleness),
            "staleness/max": max(staleness),
            "batch/traces": len(batch.traces),
            "batch/samples": len(tokens),
            "batch/tokens": sum(tokens),
            "policy/version": self.policy.version,
            "policy/update_seconds": self.policy.update_seconds,
            "queue/in_flight": self.dispatcher.episodes,
            "queue/max_concurrent": self.dispatcher.max_concurrent,
            "queue/buffered": len(self.sink.buffer.ready),
            "gateway/requests": traffic.requests,
            "gateway/retries": traffic.retries,
            "gateway/refused": traffic.refused,
            "gateway/overhead_ms": 1000 * traffic.overhead / max(1, traffic.requests),
            "gateway/queue_ms": 1000 * traffic.queued / max(1, traffic.requests),
            "gateway/queue_max": traffic.most_waiting,
        }
        for env in self.dispatcher.envs:
            if env.workers is not None:
                metrics[f"workers/{env.name}/replaced"] = env.workers.replaced
            metrics |= {
                f"curriculum/{env.name}/{name}": value for name, value in env.curriculum.metrics().items()
            }
            metrics |= {
                f"algorithm/{env.name}/{name}": value for name, value in env.algorithm.metrics().items()
            }
        self.metrics.log(batch.step, metrics)

    # -- helpers

    async def _adapt(self) -> None:
        limits = AdaptiveConcurrency(self.config.min_concurrent, self.config.max_concurrent)
        queue = partial(engine_queue, self.policy.replicas)
        await adapt(limits, queue, lambda: self.dispatcher.episodes, self.dispatcher.limit)

    async def _on_version(self, version: int) -> None:
        self.dispatcher.wake()
        await self.evaluator.visit(version)

    def _waits(self) -> str:
        evals = f"{self.evaluator.running} evaluation episodes, " if self.evaluator.running else ""
        return (
            f"{evals}{self.gateway.in_flight} model calls, {self.gateway.waiting} of them wait for a replica"
        )

    def _live(self) -> LiveState:
        return LiveState(
            time=time.time(),
            step=min(self.sink.buffer.shipped + 1, self.config.max_steps),
            version=self.policy.version,
            idle=time.monotonic() - self.dispatcher.progress,
            episodes=self.dispatcher.episodes,
            most_episodes=self.dispatcher.max_concurrent,
            buffered=len(self.sink.buffer.ready),
            calls=self.gateway.in_flight,
            calls_waiting=self.gateway.waiting,
            evaluating=self.evaluator.running,
            waits=self.dispatcher.describe(),
        )


@asynccontextmanager
async def open_orchestrator(config: OrchestratorConfig, version: int) -> AsyncIterator[Orchestrator]:
    """Connect to the replicas, open the gateway, load the environments; close them all in the end."""
    config = config.model_copy(deep=True)
    resolve_environments(config)
    async with AsyncExitStack() as stack:
        warming = asyncio.create_task(warm_renderer(config))  # takes seconds, and so do the replicas
        pools = await connect(config, version, stack)
        await warming
        gateway = Gateway(
            config.gateway, pools, seed=config.seed, context=config.seq_len, api_key=policy_key(config)
        )
        await stack.enter_async_context(gateway)
        train = [TrainEnv(source, config, gateway) for source in config.train.source]
        evals = [EvalEnv(source, config, gateway) for source in config.eval.source]
        for env in (*train, *evals):
            await stack.enter_async_context(env.serving())
        for source in train:
            stack.push_async_callback(source.algorithm.close)
        logger.info(
            "gateway at %s, %d replica(s), %d training source(s)",
            gateway.url,
            len(pools[config.model.path]),
            len(train),
        )
        yield Orchestrator(config, gateway, pools[config.model.path], train, evals)


def first_cause(error: BaseException) -> BaseException:
    """The error that started a failure of several tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
