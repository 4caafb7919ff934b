"""Compare a GRPO step (forward, backward, AdamW) of Braid with a padded transformers step that has the same loss.

    python benchmarks/train_step.py MODEL_FOLDER [--threads 2] [--groups 4] [--siblings 8] [--prompt 96]
    [--steps 2]

The batch is synthetic: groups of siblings that share a prompt, completions of 16 to 48 tokens, sampler log-probs close
to the model's own. Every contestant runs in its own process, so that peak memory is measured separately. The first step
is not timed. On a shared machine, compare CPU seconds with one thread.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from braidrl.configs.loss import IPOLossConfig
from braidrl.configs.model import ModelConfig
from braidrl.packing import Normalisers, pack
from braidrl.trainer.model.forward import to_device, token_logprobs
from braidrl.trainer.model.loading import load_model
from braidrl.trainer.rl.components import component_loss
from braidrl.trainer.rl.losses import make_loss
from braidrl.transport.types import TrainingBatch, TrainingSample, decode_batch, encode

CONTESTANTS = ("padded float32", "braid float32", "braid bfloat16")


def make_batch(model: torch.nn.Module, groups: int, siblings: int, prompt: int) -> TrainingBatch:
    """Return a random batch with a fixed seed. Log-probs of the sampler are those of the model plus a little noise."""
    rng = np.random.default_rng(0)
    samples = []
    for group in range(groups):
        shared = rng.integers(10, 40000, prompt + rng.integers(-16, 17))
        for _ in range(siblings):
            ids = np.concatenate([shared, rng.integers(10, 40000, rng.integers(16, 49))]).astype(np.int32)
            mask = np.arange(len(ids)) >= len(shared)
            with torch.no_grad():
                logits = model(input_ids=torch.from_numpy(ids).long()[None]).logits[0, :-1].log_softmax(-1)
            x = logits.gather(-1, torch.from_numpy(ids).long()[1:, None])[:, 0].numpy()
            mu = np.where(mask, np.append(0, x) + 0.1 * rng.normal(size=len(ids)), 0)
            samples.append(
                TrainingSample(
                    token_ids=ids,
                    mask=mask,
                    sampling_logprobs=mu.astype(np.float32),
                    advantages=(mask * rng.normal()).astype(np.float32),
                    group_id=str(group),
                )
            )
    return TrainingBatch(step=1, samples=samples)


class Padded:
    """Baseline as in a plain script: padding, full-vocabulary float32 logits, log-softmax, mask."""

    def __init__(self, folder: str, samples: list[TrainingSample]) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
        self.samples = samples

    def loss(self) -> Tensor:
        def padded(name: str) -> Tensor:
            streams = [torch.from_numpy(getattr(sample, name)) for sample in self.samples]
            return torch.nn.utils.rnn.pad_sequence(streams, batch_first=True)

        ids = padded("token_ids").long()
        lengths = torch.tensor([len(sample.token_ids) for sample in self.samples])
        attention_mask = torch.arange(ids.shape[1])[None] < lengths[:, None]
        logits = self.model(input_ids=ids, attention_mask=attention_mask.long(), use_cache=False).logits
        logprobs = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        member = padded("mask")[:, 1:]
        x, mu = logprobs[member], padded("sampling_logprobs")[:, 1:][member]
        keep = (x.exp() - mu.exp()).abs().detach() <= 0.3
        ratio = torch.exp(x[keep] - mu[keep])
        return -(ratio * padded("advantages")[:, 1:][member][keep]).sum() / member.sum()

    def backward(self) -> float:
        loss = self.loss()
        loss.backward()
        return loss.item()


class Braid:
    """Step with the trainer's functions and the same loss."""

    def __init__(self, folder: str, samples: list[TrainingSample], dtype: torch.dtype) -> None:
        self.model, self.dtype = load_model(ModelConfig(path=folder), "cpu"), dtype
        self.samples, self.rl_loss = samples, make_loss(IPOLossConfig())

    def backward(self) -> float:
        total, normalisers = 0.0, Normalisers.of(self.samples)
        for row in pack(self.samples, max_tokens=2048):
            micro = to_device(row, "cpu")
            outputs = token_logprobs(self.model, micro, self.dtype)
            loss, _ = component_loss(outputs, micro, self.rl_loss, normalisers)
            loss.backward()
            total += loss.item()
        return total


def measure(contestant: str, folder: str, batch: Path, threads: int, steps: int) -> dict[str, float]:
    """Time `steps` steps. Loss and gradient norm are those of the first step, which is not timed."""
    torch.set_num_threads(threads)
    samples = decode_batch(batch.read_bytes()).samples
    kind, dtype = contestant.split()
    step = Padded(folder, samples) if kind == "padded" else Braid(folder, samples, getattr(torch, dtype))
    optimizer = torch.optim.AdamW(step.model.parameters(), lr=1e-6)
    result: dict[str, float] = {}
    seconds, processor = [], []
    for _ in range(1 + steps):
        start, busy = time.perf_counter(), time.process_time()
        loss = step.backward()
        if not result:
            norms = torch.stack([p.grad.norm() for p in step.model.parameters() if p.grad is not None])
            result = {"loss": loss, "grad_norm": norms.norm().item()}
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - busy)
    tokens = sum(int(sample.mask.sum()) for sample in samples)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return result | {
        "tokens_per_second": tokens / min(seconds[1:]),
        "processor_seconds": min(processor[1:]),
        "peak_gib": memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="Hugging Face folder")
    for name, default in (("threads", 2), ("groups", 4), ("siblings", 8), ("prompt", 96), ("steps", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contestant:
        print(json.dumps(measure(args.contestant, args.model, args.batch, args.threads, args.steps)))
        return
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        batch = Path(folder) / "batch.msgpack"
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        batch.write_bytes(encode(make_batch(model, args.groups, args.siblings, args.prompt)))
        del model
        results = {}
        for name in CONTESTANTS:
            command = [sys.executable, __file__, *sys.argv[1:], "--contestant", name, "--batch", str(batch)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results[name] = json.loads(output.splitlines()[-1])
    report(results)


def report(results: dict[str, dict[str, float]]) -> None:
    base = results[CONTESTANTS[0]]
    columns = {
        "trained tokens/s": 17,
        "speed": 8,
        "processor s": 12,
        "speed ": 8,
        "peak GiB": 10,
        "memory": 8,
    }
    columns |= {"loss": 14, "grad norm": 12}
    print(" " * 16 + "".join(f"{name:>{width}}" for name, width in columns.items()))
    for name, row in results.items():
        speed = row["tokens_per_second"] / base["tokens_per_second"]
        work = base["processor_seconds"] / row["processor_seconds"]
        memory = row["peak_gib"] / base["peak_gib"]
        print(
            f"{name:16}{row['tokens_per_second']:17.1f}{speed:7.2f}x{row['processor_seconds']:12.2f}{work:7.2f}x"
            f"{row['peak_gib']:10.2f}{memory:7.2f}x{row['loss']:14.8f}{row['grad_norm']:12.7g}"
        )
    for key in ("loss", "grad_norm"):
        difference = abs(results[CONTESTANTS[1]][key] / base[key] - 1)
        print(f"{key}: braid float32 and padded float32 have a relative difference of {difference:.1e}")


if __name__ == "__main__":
    main()
