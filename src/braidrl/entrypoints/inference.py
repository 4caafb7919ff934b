"""`braid inference`: one of the three processes of a run, or a server of its own."""

from braidrl.configs.inference import InferenceConfig
from braidrl.entrypoints.process import run_process


def main(args: list[str]) -> int:
    return run_process(InferenceConfig, args, "inference", "braidrl.inference.server:run", pass_resume=False)
