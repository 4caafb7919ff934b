"""`braid sft @ FILE`: supervised fine-tuning on demonstrations, in this process."""

from braidrl.configs.sft import SFTConfig
from braidrl.entrypoints.process import run_process


def main(args: list[str]) -> int:
    return run_process(SFTConfig, args, "sft", "braidrl.trainer.sft.train:train_sft", pass_resume=False)
