"""One agent proposes a problem, and the success rate of several attempts at it decides the proposer's reward."""

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
