"""Compare peak memory of the head's forward and backward pass with plain float32 logits, in one run.

    python benchmarks/loss_memory.py [--entries 8192] [--vocabulary 49152] [--hidden 576] [--candidates 128]
    [--threads 1]

The plain version computes only log-probs: logits of all entries, log-softmax, gather, autograd. Every contestant runs
in its own process. Its memory is the increase of the peak during the forward and backward pass over the inputs (hidden
states, weight, targets and candidates), so it includes the gradients of hidden states and weight.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from torch import Tensor

from braidrl.trainer.model.forward import LMHead, head_logprobs

CONTESTANTS = ("plain log-probs", "log-probs", "with entropy", "with entropy and candidates")


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return a loss of log-probs computed from full float32 logits."""
    return (hidden @ weight.T).log_softmax(-1).gather(-1, targets[:, None]).mean()


def ours(hidden: Tensor, weight: Tensor, targets: Tensor, entropy: bool, candidates: Tensor | None) -> Tensor:
    """Return the same loss computed by the trainer's head, with entropy and candidates if requested."""
    outputs = head_logprobs(
        hidden, LMHead(weight, None), targets, torch.ones(len(hidden)), candidates=candidates
    )
    loss = outputs.logprobs.mean()
    if entropy:
        loss = loss + outputs.entropy.mean()
    return loss if outputs.head_logprobs is None else loss + outputs.head_logprobs.mean()


def measure(contestant: str, args: argparse.Namespace) -> dict[str, float]:
    """Measure one pass: peak memory above the inputs in GiB, CPU seconds, loss, and gradient norm of the weight."""
    torch.set_num_threads(args.threads)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(args.entries, args.hidden, generator=generator).requires_grad_()
    weight = torch.empty(args.vocabulary, args.hidden).normal_(0, 0.1, generator=generator).requires_grad_()
    targets = torch.randint(args.vocabulary, (args.entries,), generator=generator)
    shape = (args.entries, args.candidates)
    candidates = torch.randint(args.vocabulary, shape, generator=generator)
    before, busy = peak_gib(), time.process_time()
    if contestant == CONTESTANTS[0]:
        loss = plain(hidden, weight, targets)
    else:
        loss = ours(
            hidden,
            weight,
            targets,
            "entropy" in contestant,
            candidates if "candidates" in contestant else None,
        )
    loss.backward()
    memory, seconds = peak_gib() - before, time.process_time() - busy
    assert weight.grad is not None
    return {"gib": memory, "seconds": seconds, "loss": loss.item(), "grad_norm": weight.grad.norm().item()}


def peak_gib() -> float:
    """Return the peak resident memory of this process in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    defaults = {"entries": 8192, "vocabulary": 49152, "hidden": 576, "candidates": 128, "threads": 1}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contestant:
        print(json.dumps(measure(args.contestant, args)))
        return
    results = {}
    print(f"{args.entries} loss entries, vocabulary {args.vocabulary}, hidden size {args.hidden}, float32")
    print(f"{'':30}{'peak GiB':>10}{'memory':>9}{'processor s':>13}{'time':>8}{'loss':>12}{'grad norm':>12}")
    for name in CONTESTANTS:
        command = [sys.executable, __file__, *sys.argv[1:], "--contestant", name]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        row = results[name] = json.loads(output)
        base = results[CONTESTANTS[0]]
        memory, seconds = (row[key] / base[key] for key in ("gib", "seconds"))
        print(
            f"{name:30}{row['gib']:10.3f}{memory:8.3f}x{row['seconds']:13.1f}{seconds:7.2f}x"
            f"{row['loss']:12.6f}{row['grad_norm']:12.6f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
