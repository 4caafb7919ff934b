"""Measure episodes per second of verifiers' `null` harness (a process per rollout) and `braid-chat`, in one run.

    python benchmarks/episodes.py [--episodes 400] [--concurrency 64] [--null-episodes 6]

Both run `reverse-text` against an engine that answers immediately, with the training client (which renders messages to
tokens and receives log-probs), so that only the overhead between a task and its finished episode is measured.
"""

import argparse
import asyncio
import cProfile
import logging
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import verifiers.v1 as vf
from renderers import config_from_name
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import load_environment

from braidrl.configs.environment import resolve_env
from braidrl.utils.tiny_model import byte_tokenizer, create_tiny_model

ANSWER = "hgfedcba"


@contextmanager
def stub_engine() -> Iterator[str]:
    """Run an engine in a separate process and yield its base URL."""
    tokenizer = byte_tokenizer()
    completion = [*tokenizer.encode(ANSWER), tokenizer.convert_tokens_to_ids("<|im_end|>")]
    command = [sys.executable, str(Path(__file__).parent / "stub_engine.py"), *map(str, completion)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.terminate()


async def play(
    harness: str,
    episodes: int,
    concurrency: int,
    client: vf.TrainClientConfig,
    profiler: cProfile.Profile | None = None,
) -> float:
    """Run `episodes` episodes and return episodes per second. An additional first episode warms up and is not
    counted."""
    block = {"taskset": {"id": "reverse-text", "num_tasks": 64}, "agent": {"harness": {"id": harness}}}
    env = load_environment(resolve_env(block))
    tasks = list(env.taskset)
    context = vf.ModelContext(
        model="policy", client=client, sampling=SamplingConfig(temperature=1.0, max_tokens=64)
    )
    slots = [env.slots(tasks[index % len(tasks)])[0] for index in range(episodes + 1)]
    async with env.serving():
        finished = [await env.run_slot(slots[0], context)]
        semaphore = asyncio.Semaphore(concurrency)
        if profiler:
            profiler.enable()
        start = time.perf_counter()
        finished += await asyncio.gather(*(env.run_slot(slot, context, semaphore) for slot in slots[1:]))
        seconds = time.perf_counter() - start
        if profiler:
            profiler.disable()
    failed = [episode for episode in finished if not episode.ok]
    if failed:
        raise RuntimeError(
            f"{len(failed)} of {len(finished)} episodes failed: {failed[0].traces[0].last_error}"
        )
    return episodes / seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=400, help="number of episodes with braid-chat")
    parser.add_argument("--null-episodes", type=int, default=6, help="number of episodes with null")
    parser.add_argument("--concurrency", type=int, default=64, help="maximum number of concurrent episodes")
    parser.add_argument("--profile", action="store_true", help="only run braid-chat, and print its profile")
    arguments = parser.parse_args()
    logging.getLogger("verifiers").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, stub_engine() as base_url:
        model = create_tiny_model(Path(folder) / "model")
        client = vf.TrainClientConfig(
            base_url=base_url,
            api_key_var="BRAID_BENCHMARK_API_KEY",
            renderer=config_from_name("qwen3"),
            renderer_model_name=str(model),
        )
        if arguments.profile:
            profiler = cProfile.Profile()
            asyncio.run(play("braid-chat", arguments.episodes, arguments.concurrency, client, profiler))
            pstats.Stats(profiler).sort_stats("cumulative").print_stats(50)
            return
        ours = asyncio.run(play("braid-chat", arguments.episodes, arguments.concurrency, client))
        print(f"braid-chat  {ours:8.1f} episodes/s ({arguments.episodes}, {arguments.concurrency} in flight)")
        null = asyncio.run(play("null", arguments.null_episodes, arguments.concurrency, client))
        print(f"null        {null:8.1f} episodes/s ({arguments.null_episodes})")
        print(f"ratio       {ours / null:8.1f}")


if __name__ == "__main__":
    main()
