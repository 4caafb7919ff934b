"""One agent proposes a problem, several attempts at it decide how useful it was."""

from proposer_solver.env import ProposerSolverEnv, ProposerSolverEnvConfig
from proposer_solver.taskset import ProposerData, ProposerSolverConfig, ProposerSolverTaskset, ProposerTask

__all__ = [
    "ProposerData",
    "ProposerSolverConfig",
    "ProposerSolverEnv",
    "ProposerSolverEnvConfig",
    "ProposerSolverTaskset",
    "ProposerTask",
]
