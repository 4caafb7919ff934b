"""Compare tokens per second of the embedded engine with `transformers` generate, in one run.

usage: python benchmarks/generate.py MODEL_DIR [--dtype float32] [--batches 1 8 32 64] [--prompt 32] [--tokens
32]

Both sample at temperature 1 from the same prompts (all different, so that no prefix is shared), with the same number of
new tokens and without an end token. Runs alternate and the best of each counts, so that other load on the machine
affects both equally. The engine's time includes log-probs, which transformers does not compute.
"""

import argparse
import random
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from braidrl.configs.inference import InferenceConfig
from braidrl.configs.model import ModelConfig
from braidrl.inference.engines.sampling import SamplingParams
from braidrl.inference.engines.torch import TorchEngine


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--prompt", type=int, default=32, help="number of prompt tokens")
    parser.add_argument("--tokens", type=int, default=32, help="number of new tokens")
    parser.add_argument("--repeats", type=int, default=4)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
    engine = TorchEngine(
        InferenceConfig(
            model=ModelConfig(path=str(args.model), dtype=args.dtype),
            max_batch_size=max(args.batches),
            seq_len=args.prompt + args.tokens,
        )
    )
    engine.start()
    engine.loaded.result()
    draw = random.Random(0)
    sizes = f"{args.prompt} prompt + {args.tokens} new tokens"
    print(f"{args.model.name}, {args.dtype}, {sizes}, {torch.get_num_threads()} threads")
    print(f"{'batch':>5}  {'transformers':>12}  {'braid':>8}  ratio   (tokens/s)")
    for batch in args.batches:
        times: dict[str, list[float]] = {"transformers": [], "braid": []}
        for _ in range(args.repeats):
            prompts = [draw.choices(range(10, model.config.vocab_size), k=args.prompt) for _ in range(batch)]
            times["transformers"].append(transformers_seconds(model, prompts, args.tokens))
            times["braid"].append(engine_seconds(engine, prompts, args.tokens))
        baseline, ours = (batch * args.tokens / min(times[name]) for name in ("transformers", "braid"))
        print(f"{batch:>5}  {baseline:>12.1f}  {ours:>8.1f}  {ours / baseline:.2f}x", flush=True)
    engine.close()


@torch.inference_mode()
def transformers_seconds(model: PreTrainedModel, prompts: list[list[int]], tokens: int) -> float:
    """Return the seconds of one `generate` with the dynamic cache."""
    inputs = torch.tensor(prompts)
    started = time.perf_counter()
    output = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        pad_token_id=0,
    )
    seconds = time.perf_counter() - started
    assert output.shape == (len(prompts), len(prompts[0]) + tokens)
    return seconds


def engine_seconds(engine: TorchEngine, prompts: list[list[int]], tokens: int) -> float:
    """Return the seconds until all requests have finished."""
    params = SamplingParams(max_tokens=tokens)
    requests = [engine.request(prompt, params, id=str(i), eos=False) for i, prompt in enumerate(prompts)]
    started = time.perf_counter()
    done = [future.result() for future in [engine.submit(request) for request in requests]]
    seconds = time.perf_counter() - started
    assert all(len(request.completion) == tokens for request in done)
    return seconds


if __name__ == "__main__":
    main()
