"""Environments in worker processes, for those that keep a processor busy: verifiers' env server in each, a dead one
is replaced."""

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
"""Longest wait for a worker to load its environment."""
STOP_SECONDS = 10.0
"""Longest wait for a worker to end by itself."""
PAUSES = (0.0, 1.0, 5.0, 30.0)
"""Seconds before a worker is replaced that died so many times in a row without an answer; then always the last."""


class WorkerError(RuntimeError):
    """A worker process ended, or did not start."""


class Worker:
    """One process, and the connection to it. `log` takes what it prints."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self.running = 0
        """Episodes in flight."""
        self.answered = False
        """Whether it has ended an episode."""
        self.ready = False
        """Whether it takes episodes."""
        self._ended: asyncio.Future[int]
        self._checks: set[asyncio.Task[None]] = set()

    async def start(self, config: EnvConfig, address: str) -> None:
        """Load the environment in a process of its own. Raises `WorkerError` when it ends or takes too long."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "braidrl.orchestrator.env_worker", address),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(sys.path)},  # it finds what this process finds
            )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(env_config_data(config)) + b"\n")
        self._ended = asyncio.ensure_future(self._process.wait())
        self._client = EnvClient(address)
        await self._until_ended(self._client.wait_for_server_startup(START_SECONDS, interval=0.2))
        self.ready = True

    async def play(
        self, context: vf.ModelContext, task: vf.Task, on_delta: Callable[[dict[str, Any]], None]
    ) -> vf.Episode:
        """One episode. Raises `WorkerError` when the process ends before it."""
        self.running += 1
        try:
            data = task.data.model_dump(mode="json")
            playing = self._client.run(context.client, context.model, context.sampling, data, on_delta)
            episode = await self._until_ended(playing)
        except asyncio.CancelledError:
            self._checks.add(check := asyncio.create_task(self._check()))
            check.add_done_callback(self._checks.discard)
            raise
        finally:
            self.running -= 1
        self.answered = True
        return episode

    async def wait(self) -> None:
        """Until the process has ended."""
        await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """End the process, if need be by force."""
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

    def epitaph(self) -> str:
        """How it ended, and what it said last."""
        code = self._process.returncode
        said = f"last lines of {self.log}:\n{tail(self.log)}"
        return f"environment worker {self.name} ended with exit code {code}; {said}"

    async def _check(self) -> None:
        """End a process that an episode keeps busy although it was stopped: nothing else would play in it again."""
        if not await self._client.health(STOP_SECONDS) and not self._ended.done():
            logger.warning(
                "environment worker %s did not answer within %g s after an episode was stopped; it is killed",
                self.name,
                STOP_SECONDS,
            )
            self._process.kill()

    async def _until_ended(self, work: Any) -> Any:
        """What `work` comes to, unless the process ends first."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.ready = False
                raise WorkerError(self.epitaph())
            return task.result()
        except TimeoutError as error:
            raise WorkerError(f"environment worker {self.name}: {error}; see {self.log}") from error
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})


class Workers:
    """The workers of one source. The least busy one plays the next episode."""

    def __init__(self, name: str, config: EnvConfig, count: int, logs: Path) -> None:
        self.name = name
        self.config = config
        self.replaced = 0
        """Workers that died."""
        self.all = [Worker(f"{name}/{number}", logs / f"env-{name}-{number}.log") for number in range(count)]
        self._changed = asyncio.Event()
        self._addresses = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Hold the processes. Raises `WorkerError` when one of them cannot be started."""
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
        """The least busy worker. Raises `WorkerError` when all are dead for too long."""
        try:
            async with asyncio.timeout(START_SECONDS):
                while not (ready := [worker for worker in self.all if worker.ready]):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise WorkerError(
                f"no worker of source {self.name!r} came back within {START_SECONDS:g} s; {self.all[0].epitaph()}"
            ) from None
        return min(ready, key=lambda worker: worker.running)

    async def _start(self, worker: Worker) -> None:
        self._addresses += 1
        await worker.start(self.config, f"ipc://{self._sockets / str(self._addresses)}")
        self._changed.set()

    async def _watch(self, worker: Worker) -> None:
        """Replace the worker's process whenever it ends."""
        failures = 0
        while True:
            await worker.wait()
            failures = 0 if worker.answered else failures + 1
            pause = PAUSES[min(failures, len(PAUSES) - 1)]
            logger.warning("%s\nit is replaced in %g s", worker.epitaph(), pause)
            self.replaced += 1
            worker.answered = False
            await worker.stop()
            await asyncio.sleep(pause)
            try:
                await self._start(worker)
            except WorkerError:
                await worker.stop()  # it may have been slow, not dead; the next round says why


class RemoteEpisodeRun:
    """An episode that a worker plays; the traces arrive turn by turn."""

    def __init__(self, workers: Workers, task: vf.Task) -> None:
        self.workers = workers
        self.task = task
        self._assembly = EpisodeAssembly()

    @property
    def traces(self) -> Sequence[Trace]:
        return [trace for record in self._assembly.traces.values() if (trace := _read(record)) is not None]

    async def run(self, context: vf.ModelContext, on_trace: OnTrace) -> vf.Episode:
        def on_delta(delta: dict[str, Any]) -> None:
            self._assembly.apply(delta)
            if "open" in delta:
                agent = delta["set"]["agent"]
                on_trace(delta["trace"], agent["name"], agent["trainable"])

        worker = await self.workers.free()
        return await worker.play(context, self.task, on_delta)


def _read(record: dict[str, Any]) -> Trace | None:
    """A trace that was cut off; None where it holds nothing that can be read yet."""
    try:
        return WireTrace.model_validate({key: value for key, value in record.items() if key != "pending"})
    except ValidationError:
        logger.warning("a trace that was cut off cannot be read", exc_info=True)
        return None
