"""A reward function and a list of prompts: a randomly initialised tiny model learns to answer in vowels.

python examples/one_file.py [FOLDER SEED]
"""

import sys
from pathlib import Path

import braidrl
from braidrl.utils.tiny_model import create_tiny_model

folder, seed = sys.argv[1:3] if len(sys.argv) > 2 else ("outputs/one_file", "0")
prompts = [f"Sing {number}!" for number in range(100)]


def vowels(completion: str) -> float:
    """Return the share of vowels in an answer. Answers shorter than 16 characters count as 16 long."""
    return sum(character in "aeiou" for character in completion) / max(16, len(completion))


run = braidrl.run(
    {
        "model": {"path": create_tiny_model(Path(folder) / "model", seed=int(seed))},
        "output_dir": Path(folder) / "run",
        "max_steps": 40,
        "seq_len": 64,
        "seed": int(seed),
        "trainer": {"optim": {"lr": 5e-3}},
        "orchestrator": {
            "batch_size": 64,
            "renderer": {"name": "qwen3", "enable_thinking": False},
            "train": {
                "sampling": {"max_tokens": 16},
                "source": [{"env": braidrl.environment(prompts, vowels)}],
            },
        },
    }
)
print(f"mean reward: {run.rewards[0]:.2f} in the first step, {run.rewards[-1]:.2f} in the last step")
