"""`braid orchestrator`: one of the three processes of a run."""

from braidrl.configs.orchestrator import OrchestratorConfig
from braidrl.entrypoints.process import run_process


def main(args: list[str]) -> int:
    return run_process(OrchestratorConfig, args, "orchestrator", "braidrl.orchestrator.orchestrator:run")
