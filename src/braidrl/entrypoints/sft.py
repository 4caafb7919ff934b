"""`braid sft @ FILE`: supervised fine-tuning on demonstrations, in this process."""

import os

from braidrl.configs.core.load import to_toml
from braidrl.configs.sft import SFTConfig
from braidrl.entrypoints.process import run_process
from braidrl.monitors.record import recorded
from braidrl.utils.run_folder import RunFolder


def main(args: list[str]) -> int:
    return run_process(SFTConfig, args, "sft", "braidrl.entrypoints.sft:train", pass_resume=False)


def train(config: SFTConfig) -> None:
    """Train, and let the run folder tell of it: the resolved config, how it was started and how it ended."""
    from braidrl.trainer.sft.train import train_sft

    run = RunFolder(config.output_dir)
    leads = os.environ.get("RANK", "0") == "0"
    if (
        not leads or run.weights(config.max_steps).exists()
    ):  # trained already: an error, and not this run's end
        train_sft(config)
        return
    run.configs.mkdir(parents=True, exist_ok=True)
    (run.configs / "sft.toml").write_text(to_toml(config))
    with recorded(run):
        train_sft(config)
