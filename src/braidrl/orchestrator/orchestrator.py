"""The orchestrator process: runs episodes and ships batches of training samples."""

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
from braidrl.orchestrator.heartbeat import heartbeat, publish_live
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
    """Run the orchestrator until `max_steps`. With `resume_step`, continue after the checkpoint of that step."""
    asyncio.run(_run_until_terminated(config, resume_step))


async def _run_until_terminated(config: OrchestratorConfig, resume_step: int | None) -> None:
    """Run the orchestrator and exit cleanly on SIGTERM: cancel all episodes and stop their processes."""
    job = asyncio.create_task(orchestrate(config, resume_step, freeze_gc))
    terminated = asyncio.Event()

    def terminate() -> None:
        terminated.set()
        job.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        await job
    except asyncio.CancelledError:
        if terminated.is_set():
            raise SystemExit(128 + signal.SIGTERM) from None
        raise


async def orchestrate(
    config: OrchestratorConfig, resume_step: int | None = None, ready: Callable[[], None] | None = None
) -> None:
    """Ship one batch per step until `max_steps`, and run the evaluations that are due. Every wait has a deadline.

    `ready` is called once everything is loaded, before the first step.
    """
    done = resume_step or 0
    async with AsyncExitStack() as stack:
        orchestrator = await stack.enter_async_context(open_orchestrator(config, done))
        await orchestrator.start(done)
        if ready is not None:
            ready()
        async with orchestrator.background_tasks():
            for step in range(done + 1, config.max_steps + 1):
                await orchestrator.step(step)
            await orchestrator.finish()


class Orchestrator:
    """Connected parts of the orchestrator process, and the order of operations within a step."""

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

    # -- steps

    async def start(self, done: int) -> None:
        """Restore the state after step `done` (0: a new run) and make the replicas serve its policy."""
        self.sink.resume_at(done)
        if done:
            checkpoint.load(self.run_folder, done, self.dispatcher)
            self.metrics.truncate_after(done)
            self.ledger.truncate_after(done)
            self.evaluator.metrics.truncate_after(done)
            # an evaluation that was due before the checkpoint but did not finish needs the weights of its own version
            if (missed := self.evaluator.missed(done)) is not None:
                await self.policy.start(missed)
                await self.evaluator.visit(missed)
        await self.policy.start(done)
        for env in self.dispatcher.envs:
            await env.algorithm.setup()

    @asynccontextmanager
    async def background_tasks(self) -> AsyncIterator[None]:
        """Run dispatcher, policy watcher and heartbeat while the context is open. The first of them that fails ends the
        run, after the episodes since the last step have been recorded."""
        beat = heartbeat(lambda: self.dispatcher.progress, self.dispatcher.describe, self._describe_calls)
        jobs = [
            self.dispatcher.run(),
            self.policy.run(),
            beat,
            publish_live(self.run_folder.live, self._live_state),
        ]
        if self.config.concurrency == "adaptive":
            jobs.append(self._adapt_concurrency())
        try:
            async with asyncio.TaskGroup() as group:
                background = [group.create_task(job) for job in jobs]
                yield
                for task in background:
                    task.cancel()
        except BaseExceptionGroup as error:
            with suppress(OSError):  # must not hide the error that ended the run
                await self.record(self.sink.next_step, self.sink.take_ended())
            raise first_cause(error) from None

    async def step(self, step: int) -> None:
        """Collect, publish, report and record the batch of `step`, and save a checkpoint if one is due."""
        started = time.perf_counter()
        oldest_useful = max(0, step - 1 - self.config.max_off_policy_steps)
        await self.policy.wait_for(oldest_useful, self.config.policy_timeout)
        waited = time.perf_counter() - started
        batch = await self.dispatcher.collect(step)
        saves = self.config.checkpoint.due(step, self.config.max_steps)
        state = checkpoint.capture(step, self.dispatcher) if saves else b""
        # no await since capture: a group that ends later is still in flight in the captured state, so that a resumed
        # run repeats it, and it must not be recorded with this step
        ended = self.sink.take_ended()
        if self.config.share_device:
            await self.policy.sleep()  # before publishing: the trainer takes the device once it has the batch
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
        """Wait for the last policy version and its evaluation. The deadlines of its episodes bound the evaluation."""
        await self.policy.wait_for(self.config.max_steps, self.config.policy_timeout)
        await self.policy.wait_visited(self.config.max_steps)
        logger.info("finished all %d steps", self.config.max_steps)

    async def record(self, step: int, ended: EndedGroups) -> None:
        """Write the groups and episodes that ended while the batch of `step` was collected."""
        self.ledger.write(step, ended.outcomes)
        await write_records(self.run_folder.train_episodes(step), group_records(ended.groups, step))

    def report(self, batch: CollectedBatch, seconds: dict[str, float]) -> None:
        """Write the metrics of a batch."""
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
            "queue/buffered": self.sink.buffered,
            "gateway/requests": traffic.requests,
            "gateway/retries": traffic.retries,
            "gateway/refused": traffic.refused,
            "gateway/overhead_ms": 1000 * traffic.overhead / max(1, traffic.requests),
            "gateway/queue_ms": 1000 * traffic.queued / max(1, traffic.requests),
            "gateway/queue_max": traffic.max_waiting,
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

    async def _adapt_concurrency(self) -> None:
        limits = AdaptiveConcurrency(self.config.min_concurrent, self.config.max_concurrent)
        queue = partial(engine_queue, self.policy.replicas)
        await adapt(limits, queue, lambda: self.dispatcher.episodes, self.dispatcher.set_max_concurrent)

    async def _on_version(self, version: int) -> None:
        self.dispatcher.wake()
        await self.evaluator.visit(version)

    def _describe_calls(self) -> str:
        evals = f"{self.evaluator.running} evaluation episodes, " if self.evaluator.running else ""
        return (
            f"{evals}{self.gateway.in_flight} model calls, {self.gateway.waiting} of them wait for a replica"
        )

    def _live_state(self) -> LiveState:
        return LiveState(
            time=time.time(),
            step=min(self.sink.next_step, self.config.max_steps),
            version=self.policy.version,
            idle=time.monotonic() - self.dispatcher.progress,
            episodes=self.dispatcher.episodes,
            most_episodes=self.dispatcher.max_concurrent,
            buffered=self.sink.buffered,
            calls=self.gateway.in_flight,
            calls_waiting=self.gateway.waiting,
            evaluating=self.evaluator.running,
            waits=self.dispatcher.describe(),
        )


@asynccontextmanager
async def open_orchestrator(config: OrchestratorConfig, version: int) -> AsyncIterator[Orchestrator]:
    """Connect to the replicas, open the gateway and load the environments, and close all on exit. The run starts from
    policy `version`."""
    config = config.model_copy(deep=True)
    resolve_environments(config)
    async with AsyncExitStack() as stack:
        warming = asyncio.create_task(warm_renderer(config))  # overlaps with connecting, both take seconds
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
    """Return the first leaf of a (nested) exception group, or `error` itself if it is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
