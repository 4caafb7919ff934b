"""Predict the memory of a run from the shape of its model, and compare the prediction with a real step.

    python benchmarks/sizing.py [MODEL ...] [--gpus 1 8 16] [--memory 80] [--dtype bfloat16]
    python benchmarks/sizing.py MODEL --measure 512

MODEL is a folder with a config.json. Without it, the tables are for four Qwen3-like shapes. `--measure N` trains on a
row of N tokens on the CPU, with each setting in its own process, and prints predicted and measured peak memory.
docs/sizing.md explains the formulas.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

GB = 1e9
LOGITS = 4 * (1 << 23) * 4
"""Bytes of temporary tensors of the head: four float32 tensors of the size of a chunk of logits (2^23 elements)."""
RESERVE = 4 * GB
"""Bytes of each GPU reserved for CUDA, communication buffers and fragmentation."""


@dataclass(frozen=True)
class Shape:
    """Shape of a dense transformer with gated MLP."""

    layers: int
    hidden: int
    queries: int
    """Number of query heads times their width."""
    keys: int
    """Number of key heads times their width. Values have the same size."""
    inner: int
    vocabulary: int
    tied: bool
    normed: bool
    """True if queries and keys are normalised (Qwen3)."""

    @classmethod
    def of(cls, config: dict) -> "Shape":
        """Return the shape of a model from the content of its config.json."""
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        width = config.get("head_dim") or hidden // heads
        keys = config.get("num_key_value_heads", heads) * width
        size = (config["num_hidden_layers"], hidden, heads * width, keys, config["intermediate_size"])
        normed = config["model_type"].startswith("qwen3")
        return cls(*size, config["vocab_size"], config.get("tie_word_embeddings", False), normed)

    @property
    def layer(self) -> int:
        """Number of parameters of one layer, without norms and biases."""
        return 2 * self.hidden * (self.queries + self.keys) + 3 * self.hidden * self.inner

    @property
    def outside(self) -> int:
        """Number of parameters of embeddings and head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        return self.layers * self.layer + self.outside

    def layer_activations(self, compute: int, attention: int) -> int:
        """Return the activations of one layer that its backward pass needs, in bytes per token.

        Args:
            compute: bytes per element of the compute dtype.
            attention: bytes per element in attention.
        """
        norms = 2 * (4 + 4) * self.hidden  # two norms, each keeps its float32 input and output
        if self.normed:
            norms += (4 + compute) * (self.queries + self.keys)
        # Inputs of matrix products. Autocast casts the input of each product separately.
        factors = 8 * self.hidden if compute == 4 else compute * (5 * self.hidden + self.queries)
        factors += 4 * compute * self.inner
        return norms + factors + attention * (2 * self.queries + 2 * self.keys)

    @property
    def layer_input(self) -> int:
        """Bytes per token that a recomputed layer keeps: the float32 residual stream."""
        return 4 * self.hidden

    @property
    def cache(self) -> int:
        """Bytes per token of the sampler's bfloat16 keys and values."""
        return 2 * 2 * self.layers * self.keys


QWEN3 = {
    "0.6B": Shape(28, 1024, 2048, 1024, 3072, 151936, True, True),
    "1.7B": Shape(28, 2048, 2048, 1024, 6144, 151936, True, True),
    "8B": Shape(36, 4096, 4096, 1024, 12288, 151936, False, True),
    "32B": Shape(64, 5120, 8192, 1024, 25600, 151936, False, True),
}


@dataclass(frozen=True)
class Memory:
    """Memory of one trainer process (GPU) in bytes, by purpose."""

    states: float
    """This process's share of float32 parameters, gradients and moments."""
    whole: float
    """Temporarily unsharded tensors: gathered layers, embeddings and head, copies in the compute dtype, gradients."""
    token: float
    """Activations per token of a row."""
    head: float = LOGITS

    @property
    def fixed(self) -> float:
        return self.states + self.whole + self.head

    def row(self, available: float) -> int:
        """Return the maximum number of tokens in a row that fits into `available` bytes."""
        return max(0, int((available - self.fixed) / self.token))


def memory(
    shape: Shape,
    ranks: int,
    compute: int = 2,
    attention: int = 2,
    recompute: bool = True,
    activation_offload: bool = False,
    offload: bool = False,
    reduce_each: bool = False,
) -> Memory:
    """Return the memory per process if `ranks` processes share one copy of the weights.

    The flags correspond to config keys of the trainer. `compute` and `attention` are bytes per element.
    """
    states = (8 if offload else 16) * shape.parameters / ranks
    if ranks == 1:
        # autocast caches its casts of the weights
        whole = shape.layers * shape.layer * (compute if compute < 4 else 0)
    else:
        # FSDP gathers two layers at a time. Embeddings and head are gathered in float32 for a whole row.
        whole = 2 * compute * shape.layer + 4 * shape.outside
        whole += 4 * shape.layer + 4 * shape.outside if reduce_each else 4 * shape.parameters
    whole += 4 * shape.vocabulary * shape.hidden  # gradient of the head before it is added to the parameter's
    one = shape.layer_activations(compute, attention)
    kept = 0 if activation_offload else shape.layers * shape.layer_input
    layers = one + kept if recompute or activation_offload else shape.layers * one
    return Memory(states, whole, layers + 4 * 4 * shape.hidden)  # plus final norm and inputs of the head


def table(shapes: dict[str, Shape], gpus: list[int], size: float, compute: int) -> None:
    """Print a row for each model and number of GPUs, which share one copy of the weights."""
    print(
        "| model | GPUs | states | whole at times | longest row | with `reduce_each_micro_batch` "
        "| and `optim.offload` | and `activation_offload` | recomputing nothing |"
    )
    print("|" + "---|" * 9)
    for name, shape in shapes.items():
        for count in gpus:
            plain = memory(shape, count, compute)
            steps: list[dict[str, bool]] = [{}, {"reduce_each": True}]
            steps += [steps[-1] | {"offload": True}]
            steps += [steps[-1] | {"activation_offload": True}, {"recompute": False}]
            rows = [memory(shape, count, compute, **flags).row(size * GB - RESERVE) for flags in steps]
            lengths = " | ".join(f"{row // 1000}k" if row >= 1000 else "none" for row in rows)
            print(f"| {name} | {count} | {plain.states / GB:.1f} | {plain.whole / GB:.1f} | {lengths} |")
    print(
        "\n| model | parameters | activations per token: one layer, all layers, recomputed | served weights "
        "| cache per token |"
    )
    print("|" + "---|" * 5)
    for name, shape in shapes.items():
        one = shape.layer_activations(compute, compute)
        acts = f"{one / 1e3:.0f} kB, {shape.layers * one / 1e6:.2f} MB, {shape.layers * shape.layer_input / 1e6:.2f} MB"
        served = f"{2 * shape.parameters / GB:.1f} GB"
        print(f"| {name} | {shape.parameters / 1e9:.2f}e9 | {acts} | {served} | {shape.cache / 1e3:.0f} kB |")


WAYS = {
    "float32": {"dtype": "float32"},
    "float32, recomputed": {"dtype": "float32", "recompute": True},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, recomputed": {"dtype": "bfloat16", "recompute": True},
}


def step(model: str, tokens: int, dtype: str, recompute: bool = False) -> None:
    """Print by how many bytes training raises the peak memory of this process after the imports."""
    import numpy as np
    import torch

    from braidrl.configs.trainer.config import TrainerConfig
    from braidrl.trainer.parallel import Parallel
    from braidrl.trainer.rl.step import Learner
    from braidrl.transport.types import TrainingSample

    torch.set_num_threads(1)
    ids = np.random.default_rng(0).integers(0, 1000, tokens).astype(np.int32)
    weights = (np.arange(tokens) > 0).astype(np.float32)
    sample = TrainingSample(
        token_ids=ids, mask=weights < 0, sampling_logprobs=np.zeros(tokens, np.float32), ce_weights=weights
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        settings = {"model": {"path": model, "dtype": dtype}, "output_dir": folder, "seq_len": tokens}
        config = TrainerConfig.model_validate(
            settings | {"activation_checkpointing": recompute, "threads": 1}
        )
        learner = Learner.load(config, Parallel(0, 1, torch.device("cpu")))
        for number in (1, 2):  # in the first step, the moments do not exist during the backward pass
            learner.step(number, [sample])
    print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))


def measure(model: str, tokens: int) -> None:
    """Print the predicted and the measured peak of a step for each setting."""
    shape = Shape.of(json.loads((Path(model) / "config.json").read_text()))
    print(f"{model}, a row of {tokens} tokens, in GB\n")
    print("| | predicted | measured | ratio |\n|---|---|---|---|")
    for name, way in WAYS.items():
        compute = 4 if way["dtype"] == "float32" else 2
        # attention on a CPU is float32
        expected = memory(shape, 1, compute, 4, recompute=bool(way.get("recompute")))
        predicted = expected.fixed + expected.token * tokens
        code = f"from benchmarks.sizing import step; step({model!r}, {tokens}, **{way!r})"
        output = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        found = int(output.split()[-1])
        print(f"| {name} | {predicted / GB:.2f} | {found / GB:.2f} | {predicted / found:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--memory", type=float, default=80.0, help="GB of one GPU")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--measure", type=int, metavar="TOKENS")
    args = parser.parse_args()
    if args.measure is not None:
        for model in args.models:
            measure(model, args.measure)
        return
    shapes = {Path(m).name: Shape.of(json.loads((Path(m) / "config.json").read_text())) for m in args.models}
    table(shapes or QWEN3, args.gpus, args.memory, 2 if args.dtype == "bfloat16" else 4)


if __name__ == "__main__":
    main()
