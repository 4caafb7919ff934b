"""Measure the overhead of the gateway: model calls through it and directly to the engines, in one run.

    python benchmarks/gateway.py [--replicas 4] [--concurrent 1000] [--rate 500] [--seconds 20] [--profile]

Stub engines and the client run in separate processes. With two cores or more, this process, which runs the gateway, has
one for itself. A call has a session, 512 prompt tokens and an answer of 64 tokens with log-probs. There are two loads:

- *paced*: calls arrive at random times, `--rate` per second, at engines with a latency of `--concurrent / --rate`
  seconds, so that about `--concurrent` calls are in flight.
- *flat out*: each of `--concurrent` callers sends its next call immediately, to engines without latency.

The latency of a call is the time the client waited minus the time the engine took. The overhead is the latency through
the gateway minus that of direct calls, at the median and the 99th percentile. The first quarter of the time, in which
connections are opened, does not count. The lateness of the event loops of client and gateway shows whether either is
overloaded.
"""

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import msgspec
import numpy as np

from braidrl.configs.orchestrator import GatewayConfig
from braidrl.orchestrator.engines.pool import GENERATE, Replicas
from braidrl.orchestrator.gateway.server import SESSION_HEADER, Gateway
from braidrl.utils.process import freeze_gc

MODEL = "policy"
PROMPT, ANSWER = list(range(512)), list(range(64))
SAMPLING = {"temperature": 1.0, "max_tokens": len(ANSWER), "logprobs": 1}
WARM_UP = 0.25
"""Fraction of the duration, at its start, whose calls do not count."""
TICK = 0.005
"""Seconds between two measurements of the lateness of an event loop."""
CORES = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


class _Answer(msgspec.Struct):
    request_id: str
    """Seconds that the engine took."""


class Lateness:
    """Lateness of the event loop of this process, measured every `TICK` seconds within the context."""

    def __init__(self) -> None:
        self.notes: list[tuple[float, float]] = []
        """Time of each measurement and the lateness, in seconds."""

    async def __aenter__(self) -> "Lateness":
        self.task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()

    async def _watch(self) -> None:
        while True:
            due = time.perf_counter() + TICK
            await asyncio.sleep(TICK)
            now = time.perf_counter()
            self.notes.append((now, now - due))

    def summary(self, since: float) -> str:
        """Return a summary of the measurements since a time."""
        late = [1000 * seconds for moment, seconds in self.notes if moment >= since]
        return f"loop late by {np.percentile(late, 99):.1f} ms at the 99th percentile, {max(late):.0f} ms at most"


class Client:
    """Client that calls `urls` in turn and records the latency of each call without the engine's time, in seconds."""

    def __init__(self, urls: list[str], concurrent: int, seconds: float) -> None:
        self.urls = [url + GENERATE for url in urls]
        self.concurrent = concurrent
        self.body = json.dumps({"model": MODEL, "token_ids": PROMPT, "sampling_params": SAMPLING})
        self.started = time.perf_counter()
        self.counted_from = self.started + WARM_UP * seconds
        self.end = self.started + seconds
        self.waits: list[float] = []

    async def load(self, rate: float) -> dict[str, object]:
        """Send `rate` calls per second, or flat out if 0."""
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            Lateness() as lateness,
            aiohttp.ClientSession(connector=connector) as self.http,
            asyncio.TaskGroup() as group,
        ):
            if rate:
                await self._arrive(group, rate)
            else:
                for number in range(self.concurrent):
                    group.create_task(self._keep_calling(number))
        since = self.counted_from
        answered = len(self.waits) / (self.end - since)
        return {"waits": self.waits, "rate": answered, "since": since, "lateness": lateness.summary(since)}

    async def _arrive(self, group: asyncio.TaskGroup, rate: float) -> None:
        gaps, at, number = random.Random(0), self.started, 0
        while at < self.end:
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            group.create_task(self._call(number))
            at += gaps.expovariate(rate)
            number += 1

    async def _keep_calling(self, number: int) -> None:
        while time.perf_counter() < self.end:
            await self._call(number)

    async def _call(self, number: int) -> None:
        headers = {SESSION_HEADER: f"trace{number % self.concurrent}", "Content-Type": "application/json"}
        started = time.perf_counter()
        async with self.http.post(
            self.urls[number % len(self.urls)], data=self.body, headers=headers
        ) as response:
            answer = await response.read()
        waited = time.perf_counter() - started
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {answer[:300]!r}")
        if self.counted_from <= started < self.end:
            self.waits.append(waited - float(msgspec.json.decode(answer, type=_Answer).request_id))


def pin(cores: list[int]) -> None:
    """Restrict this process to these cores, if the machine has more than one.

    The gateway runs on the first core, all other processes on the rest.
    """
    if len(CORES) > 1:
        os.sched_setaffinity(0, cores)


def pin_others() -> None:
    pin(CORES[1:])


@contextmanager
def engines(count: int, latency: float) -> Iterator[list[str]]:
    """Run `count` engines in one separate process and yield their addresses."""
    script = Path(__file__).parent / "stub_engine.py"
    options = ["--latency", str(latency), "--count", str(count)]
    command = [sys.executable, str(script), *options, *map(str, ANSWER)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=pin_others,  # noqa: PLW1509 - no thread runs
    ) as process:
        try:
            assert process.stdout is not None
            yield [f"http://127.0.0.1:{int(process.stdout.readline())}" for _ in range(count)]
        finally:
            process.terminate()


async def run_client(urls: list[str], arguments: argparse.Namespace, rate: float) -> dict:
    """Run the client in a separate process and return its measurements."""
    command = [sys.executable, __file__, "--client", *urls, "--rate", str(rate)]
    command += ["--concurrent", str(arguments.concurrent), "--seconds", str(arguments.seconds)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, limit=2**30, preexec_fn=pin_others
    )
    output, _ = await asyncio.wait_for(process.communicate(), 4 * arguments.seconds + 60)
    if process.returncode:
        raise RuntimeError(f"the client failed with exit code {process.returncode}; its error is above")
    return json.loads(output)


async def compare(name: str, arguments: argparse.Namespace, rate: float, latency: float) -> None:
    """Run one load directly to the engines and through the gateway, and print both."""
    with engines(arguments.replicas, latency) as urls:
        direct = await run_client(urls, arguments, rate)
        pool = Replicas(urls, live=True)
        await pool.connect(30.0)
        async with Gateway(GatewayConfig(), {MODEL: pool}, seed=0, context=4096) as gateway:
            for number in range(arguments.concurrent):
                gateway.open_session(f"trace{number}", f"group/{number}", 1.0)
            freeze_gc()  # as the orchestrator does
            busy, profiler = time.process_time(), cProfile.Profile()
            if arguments.profile:
                profiler.enable()
            async with Lateness() as lateness:
                through = await run_client([gateway.url], arguments, rate)
            profiler.disable()
            busy = time.process_time() - busy
            traffic = gateway.take_traffic()
        await pool.close()
    waits, baseline = 1000 * np.array(through["waits"]), 1000 * np.array(direct["waits"])
    added, tail = (
        np.median(waits) - np.median(baseline),
        np.percentile(waits, 99) - np.percentile(baseline, 99),
    )
    print(f"\n{name}: {arguments.concurrent} concurrent, {len(urls)} engines with a latency of {latency:g} s")
    for way, rate, seen in (("direct", direct["rate"], baseline), ("gateway", through["rate"], waits)):
        middle, late = np.percentile(seen, [50, 99])
        print(
            f"  {way:8} {rate:6.0f} calls/s, latency without engine median {middle:.2f} ms, p99 {late:.2f} ms"
        )
    print(
        f"  ratio    {through['rate'] / direct['rate']:6.2f}; overhead median {added:.2f} ms, p99 {tail:.2f} ms"
    )
    print(f"  client   {through['lateness']} (direct: {direct['lateness']})")
    print(f"  gateway  {lateness.summary(through['since'])}")
    print(f"  gateway CPU time {1000 * busy / traffic.requests:.2f} ms per call; {traffic.retries} retries")
    if arguments.profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


async def main(arguments: argparse.Namespace) -> None:
    pin(CORES[:1])
    await compare("paced", arguments, arguments.rate, arguments.concurrent / arguments.rate)
    await compare("flat out", arguments, 0.0, 0.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=4, help="number of engines behind the gateway")
    parser.add_argument("--concurrent", type=int, default=1000, help="number of concurrent calls")
    parser.add_argument("--rate", type=float, default=500.0, help="calls per second of the paced load")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="duration of each of the four measurements"
    )
    parser.add_argument("--profile", action="store_true", help="print a profile of the gateway")
    parser.add_argument("--client", nargs="+", metavar="URL", help="run only the client, for these addresses")
    given = parser.parse_args()
    if given.client:
        freeze_gc()
        print(json.dumps(asyncio.run(Client(given.client, given.concurrent, given.seconds).load(given.rate))))
    else:
        asyncio.run(main(given))
