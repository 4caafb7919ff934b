"""Worker processes for CPU-bound environments. Each runs verifiers' env server and is replaced if it dies."""

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.configs.env import EnvConfig
from verifiers.v1.serve import EnvClient, EpisodeAssembly, env_config_data
from verifiers.v1.trace import Trace, WireTrace

from braidrl.orchestrator.envs.episodes import OnTrace
from braidrl.utils.log import tail

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
"""Maximum seconds to wait for a worker to load its environment."""
STOP_SECONDS = 10.0
"""Maximum seconds to wait for a worker to exit or to answer a health check."""
RESTART_DELAYS = (0.0, 1.0, 5.0, 30.0)
"""Seconds to wait before a replacement, by the number of consecutive processes that died before completing an episode;
the last value repeats."""


class WorkerError(RuntimeError):
    """A worker process exited or did not start."""


class Worker:
    """A worker process and the connection to it. Its output is appended to `log`."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self.running = 0
        """Number of episodes in flight."""
        self.answered = False
        """True once the process has completed an episode."""
        self.ready = False
        """True while the process accepts episodes."""
        self._ended: asyncio.Future[int]
        self._checks: set[asyncio.Task[None]] = set()

    async def start(self, config: EnvConfig, address: str) -> None:
        """Start the process and load the environment. Raises `WorkerError` if it exits or takes too long."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "braidrl.orchestrator.env_worker", address),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                # the same import path, so that environments installed at run time are found
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(env_config_data(config)) + b"\n")
        self._ended = asyncio.ensure_future(self._process.wait())
        self._client = EnvClient(address)
        await self._until_ended(self._client.wait_for_server_startup(START_SECONDS, interval=0.2))
        self.ready = True

    async def run(
        self, context: vf.ModelContext, task: vf.Task, on_delta: Callable[[dict[str, Any]], None]
    ) -> vf.Episode:
        """Run one episode. Raises `WorkerError` if the process exits before its end."""
        self.running += 1
        try:
            data = task.data.model_dump(mode="json")
            request = self._client.run(context.client, context.model, context.sampling, data, on_delta)
            episode = await self._until_ended(request)
        except asyncio.CancelledError:
            self._checks.add(check := asyncio.create_task(self._check()))
            check.add_done_callback(self._checks.discard)
            raise
        finally:
            self.running -= 1
        self.answered = True
        return episode

    async def wait(self) -> None:
        """Wait until the process has exited."""
        await asyncio.shield(self._ended)  # cancelling this wait must not cancel the shared future

    async def stop(self) -> None:
        """Stop the process, and kill it if it does not exit in time."""
        self.ready = False
        for check in list(self._checks):
            check.cancel()
        await self._client.close()
        if self._process.returncode is None:
            self._process.terminate()
            await asyncio.wait({self._ended}, timeout=STOP_SECONDS)
        if not self._ended.done():
            self._process.kill()
            await self._ended

    def exit_report(self) -> str:
        """Return the exit code and the last lines of the log."""
        end = f"environment worker {self.name} ended with exit code {self._process.returncode}"
        return f"{end}; last lines of {self.log}:\n{tail(self.log)}"

    async def _check(self) -> None:
        """Kill the process if a cancelled episode still blocks it, because it could not run other episodes."""
        if not await self._client.health(STOP_SECONDS) and not self._ended.done():
            logger.warning(
                "killing environment worker %s: it did not answer within %g s after an episode was cancelled",
                self.name,
                STOP_SECONDS,
            )
            self._process.kill()

    async def _until_ended(self, work: Any) -> Any:
        """Return the result of `work`. Raises `WorkerError` if the process exits first or `work` times out."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.ready = False
                raise WorkerError(self.exit_report())
            return task.result()
        except TimeoutError as error:
            raise WorkerError(f"environment worker {self.name} timed out: {error}; see {self.log}") from error
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})


class Workers:
    """Worker processes of one source. The least busy one runs the next episode."""

    def __init__(self, name: str, config: EnvConfig, count: int, logs: Path) -> None:
        self.name = name
        self.config = config
        self.replaced = 0
        """Number of processes that died and were replaced."""
        self.all = [Worker(f"{name}/{number}", logs / f"env-{name}-{number}.log") for number in range(count)]
        self._changed = asyncio.Event()
        self._addresses = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Start the processes, and stop them on exit. Raises `WorkerError` if one of them cannot be started."""
        self._sockets = Path(tempfile.mkdtemp(prefix="braid-env-"))
        watches: list[asyncio.Task[None]] = []
        try:
            await asyncio.gather(*(self._start(worker) for worker in self.all))
            watches += [asyncio.create_task(self._watch(worker)) for worker in self.all]
            yield
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, *(worker.stop() for worker in self.all), return_exceptions=True)
            shutil.rmtree(self._sockets, ignore_errors=True)

    async def free(self) -> Worker:
        """Return the least busy worker. Raises `WorkerError` if none is ready within `START_SECONDS`."""
        try:
            async with asyncio.timeout(START_SECONDS):
                while not (ready := [worker for worker in self.all if worker.ready]):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise WorkerError(
                f"no worker of source {self.name!r} was ready within {START_SECONDS:g} s; {self.all[0].exit_report()}"
            ) from None
        return min(ready, key=lambda worker: worker.running)

    async def _start(self, worker: Worker) -> None:
        self._addresses += 1  # a new socket per process: the old file may still exist
        await worker.start(self.config, f"ipc://{self._sockets / str(self._addresses)}")
        self._changed.set()

    async def _watch(self, worker: Worker) -> None:
        """Replace the worker's process whenever it exits."""
        failures = 0
        while True:
            await worker.wait()
            failures = 0 if worker.answered else failures + 1
            delay = RESTART_DELAYS[min(failures, len(RESTART_DELAYS) - 1)]
            logger.warning("%s\nstarting a replacement in %g s", worker.exit_report(), delay)
            self.replaced += 1
            worker.answered = False
            await worker.stop()
            await asyncio.sleep(delay)
            try:
                await self._start(worker)
            except WorkerError:
                await worker.stop()  # it may still be loading; the next iteration logs its exit and retries


class RemoteEpisodeRun:
    """Episode that runs in a worker. Its traces arrive turn by turn."""

    def __init__(self, workers: Workers, task: vf.Task) -> None:
        self.workers = workers
        self.task = task
        self._assembly = EpisodeAssembly()

    @property
    def traces(self) -> Sequence[Trace]:
        """Traces so far."""
        return [trace for record in self._assembly.traces.values() if (trace := _read(record)) is not None]

    async def run(self, context: vf.ModelContext, on_trace: OnTrace) -> vf.Episode:
        """Run the episode on the least busy worker. Raises `WorkerError` if none is ready or its process exits."""

        def on_delta(delta: dict[str, Any]) -> None:
            self._assembly.apply(delta)
            if "open" in delta:
                agent = delta["set"]["agent"]
                on_trace(delta["trace"], agent["name"], agent["trainable"])

        worker = await self.workers.free()
        return await worker.run(context, self.task, on_delta)


def _read(record: dict[str, Any]) -> Trace | None:
    """Return an unfinished trace, or None if it is too incomplete to be read."""
    try:
        return WireTrace.model_validate({key: value for key, value in record.items() if key != "pending"})
    except ValidationError:
        logger.warning("dropping an unfinished trace that cannot be read", exc_info=True)
        return None
