"""Compare the bytes per encoded training sample of each kind of algorithm with dense encodings of all streams.

    python benchmarks/wire.py [--groups 8] [--siblings 8] [--prompt 300] [--answer 120] [--tool 80]

The samples are those that the orchestrator sends: verifiers episodes of two turns with a tool message in between,
scored by the algorithm's class, flattened and filtered for signal. Token ids, log-probs and rewards are random with a
fixed seed. The dense encodings contain the same samples with all eight streams as lists, as JSON and as msgpack. A
ratio is their size over Braid's.
"""

import argparse
import asyncio
from typing import Any

import msgspec
import numpy as np
from verifiers.v1 import Episode

from braidrl.configs.algorithm import BaseAlgorithmConfig, EchoConfig, GRPOConfig, OPDConfig, SFTDistillConfig
from braidrl.orchestrator.train.algo import Algorithm, make_algorithm
from braidrl.orchestrator.train.samples import drop_zero_signal, flatten_trace
from braidrl.testing.episodes import episode, trace
from braidrl.transport.types import TrainingBatch, TrainingSample, encode

FROZEN = {"name": "teacher", "base_url": "http://127.0.0.1:1/v1"}
SHAPES: dict[str, BaseAlgorithmConfig] = {
    "grpo": GRPOConfig(),
    "grpo, prompt aggregation": GRPOConfig(loss_aggregation="prompt"),
    "echo": EchoConfig(),
    "opd": OPDConfig.model_validate({"teacher": FROZEN}),
    "sft": SFTDistillConfig.model_validate({"sampling": {"source": FROZEN}}),
}
PLAIN = {"token_ids", "mask", "sampling_logprobs", "advantages"}
"""Streams of a plain GRPO sample."""
WEIGHTS = ("rl_weights", "ce_weights", "ref_kl_weights")
STREAMS = ("token_ids", "mask", "sampling_logprobs", "advantages", *WEIGHTS, "ref_logprobs")
VOCABULARY = 150_000


class StubTeacher:
    """Stub teacher that returns random log-probs."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    async def score(self, token_ids: list[int]) -> list[float]:
        return (-self.rng.exponential(size=len(token_ids))).tolist()


def make_group(rng: np.random.Generator, siblings: int, roles: list[tuple[str, int]]) -> list[Episode]:
    """Return the siblings of one task, half of them with reward 1."""
    group = [episode(trace(float(number % 2), roles)) for number in range(siblings)]
    for node in (node for played in group for node in played.traces[0].nodes):
        node.token_ids = rng.integers(0, VOCABULARY, len(node.token_ids)).tolist()
        node.logprobs = (-rng.exponential(size=sum(node.mask))).tolist()
    return group


async def score(algorithm: Algorithm, group: list[Episode]) -> None:
    for played in group:
        await algorithm.finalize_episode(played)
    await algorithm.score_group(group)


def make_batch(config: BaseAlgorithmConfig, args: argparse.Namespace) -> TrainingBatch:
    """Return the batch of one step of an environment with this algorithm."""
    rng = np.random.default_rng(0)
    roles = [
        ("user", args.prompt),
        ("assistant", args.answer),
        ("tool", args.tool),
        ("assistant", args.answer),
    ]
    algorithm = make_algorithm(config)
    if isinstance(config, OPDConfig):
        algorithm.teacher = StubTeacher(rng)
    samples: list[TrainingSample] = []
    for number in range(args.groups):
        group = make_group(rng, args.siblings, roles)
        asyncio.run(score(algorithm, group))
        for played in group:
            flat = flatten_trace(
                played.traces[0],
                seq_len=8192,
                env="terminal",
                group_id=f"terminal-{number:06d}",
                episode_id=played.id,
            )
            samples += [kept for sample in flat.samples if (kept := drop_zero_signal(sample)) is not None]
    return TrainingBatch(step=1, samples=samples)


def sent_streams(data: bytes) -> list[str]:
    """Return the names of the arrays in the encoded first sample, read from the bytes."""
    first = msgspec.msgpack.decode(data)["samples"][0]
    return [name for name, value in first.items() if isinstance(value, msgspec.msgpack.Ext)]


def dense(sample: TrainingSample) -> dict[str, Any]:
    """Return the fields of a sample with every stream as a dense list of numbers."""
    nothing = np.zeros(len(sample.token_ids), np.float32)
    fields = {
        key: value for key, value in msgspec.structs.asdict(sample).items() if not key.startswith("head_")
    }
    fields["rl_weights"] = sample.mask.astype(np.float32) if sample.rl_weights is None else sample.rl_weights
    return fields | {name: (nothing if fields[name] is None else fields[name]).tolist() for name in STREAMS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {"groups": 8, "siblings": 8, "prompt": 300, "answer": 120, "tool": 80}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    length = args.prompt + 2 * args.answer + args.tool
    print(f"{args.groups * args.siblings} samples of {length} tokens, {2 * args.answer} of them sampled")
    print(
        f"{'algorithm':26}{'bytes/sample':>15}{'/token':>9}{'JSON':>8}{'msgpack':>9}  changes to the streams of grpo"
    )
    for shape, config in SHAPES.items():
        batch = make_batch(config, args)
        data = encode(batch)
        streams = sent_streams(data)
        if shape == "grpo" and set(streams) != PLAIN:
            raise RuntimeError(
                f"a plain GRPO sample has the streams {streams}; expected only {sorted(PLAIN)}"
            )
        lists = [dense(sample) for sample in batch.samples]
        json, packed = (len(codec.encode(lists)) / len(data) for codec in (msgspec.json, msgspec.msgpack))
        size = len(data) / len(batch.samples)
        changes = [f"+{name}" for name in streams if name not in PLAIN]
        changes += [f"-{name}" for name in sorted(PLAIN - set(streams))]
        figures = f"{size:15.0f}{size / length:9.2f}{json:7.2f}x{packed:8.2f}x"
        print(f"{shape:26}{figures}  {' '.join(changes) or 'none'}")


if __name__ == "__main__":
    main()
