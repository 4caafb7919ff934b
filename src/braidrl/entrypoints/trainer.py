"""`braid trainer`: one of the three processes of a run."""

from braidrl.configs.trainer.config import TrainerConfig
from braidrl.entrypoints.process import run_process


def main(args: list[str]) -> int:
    return run_process(TrainerConfig, args, "trainer", "braidrl.trainer.rl.train:train")
