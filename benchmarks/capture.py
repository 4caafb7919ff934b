"""Measure the cost of capturing the sampler's head, in one run.

usage: python benchmarks/capture.py MODEL_DIR [--size 128] [--batch 32] [--tokens 128]

Prints tokens per second of training calls to the embedded engine, through its server and the gateway, all in this
process. Calls without a head, with a head of `--size` tokens in packed format (`packed`) and as JSON candidates in the
format of vLLM (`spelled`) alternate. The best time of each counts.
"""

import argparse
import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from unittest import mock

import aiohttp

from braidrl.configs.inference import InferenceConfig
from braidrl.configs.model import ModelConfig
from braidrl.configs.orchestrator import GatewayConfig
from braidrl.inference.server import serve
from braidrl.orchestrator.engines.pool import Replicas
from braidrl.orchestrator.gateway import server as gateway_module
from braidrl.orchestrator.gateway.server import Gateway
from braidrl.orchestrator.train.topk import num_candidates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--size", type=int, default=128, help="number of tokens in a head")
    parser.add_argument("--batch", type=int, default=32, help="number of concurrent calls")
    parser.add_argument("--tokens", type=int, default=128, help="number of tokens per call")
    parser.add_argument("--repeats", type=int, default=4)
    asyncio.run(measure(parser.parse_args()))


async def measure(args: argparse.Namespace) -> None:
    """Print one line per kind of call."""
    config = InferenceConfig(
        model=ModelConfig(path=str(args.model)),
        port=0,
        seq_len=args.tokens + 8,
        max_batch_size=args.batch,
        max_logprobs=max(200, num_candidates(args.size)),
    )
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(config, ready=address.set_result))
    async with AsyncExitStack() as stack:
        stack.callback(server.cancel)
        await asyncio.wait({server, address}, return_when=asyncio.FIRST_COMPLETED)
        replicas = Replicas([await address], live=True)
        await replicas.connect(60.0)
        stack.push_async_callback(replicas.close)
        gateway = Gateway(GatewayConfig(), {config.model.path: replicas}, seed=0, context=config.seq_len)
        await stack.enter_async_context(gateway)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        ways: dict[str, tuple[int | None, bool]] = {
            "no head": (None, True),
            "packed": (args.size, True),
            "spelled": (args.size, False),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.repeats):
            for name, (size, packed) in ways.items():
                header = gateway_module.PACKED if packed else {}
                with mock.patch.object(gateway_module, "PACKED", header):
                    times[name].append(await seconds(gateway, http, config.model.path, size, args))
        plain = min(times["no head"])
        for name, found in times.items():
            rate = args.batch * args.tokens / min(found)
            print(f"{name:>8}: {rate:8.0f} tokens/s  {plain / min(found):.2f}x")


async def seconds(
    gateway: Gateway, http: aiohttp.ClientSession, model: str, size: int | None, args: argparse.Namespace
) -> float:
    """Return the seconds until all calls have been answered."""
    sampling = {"temperature": 1.0, "logprobs": 1, "max_tokens": args.tokens, "ignore_eos": True}

    async def call(number: int) -> None:
        gateway.open_session(str(number), str(number), 1.0, size)
        body = {"model": model, "token_ids": [number, 1, 2], "sampling_params": sampling}
        headers = {"X-Session-ID": str(number)}
        url = f"{gateway.url}/inference/v1/generate"
        async with http.post(url, json=body, headers=headers) as response:
            answer = await response.json()
        assert len(answer["choices"][0]["token_ids"]) == args.tokens, answer

    started = time.perf_counter()
    await asyncio.gather(*map(call, range(args.batch)))
    elapsed = time.perf_counter() - started
    heads = [session.heads for number in range(args.batch) if (session := gateway.take_session(str(number)))]
    assert all(heads) == (size is not None)
    return elapsed


if __name__ == "__main__":
    main()
