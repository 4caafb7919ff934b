"""Kuhn poker between two agents, a zero-sum game small enough to be solved exactly."""

from kuhn_poker.env import KuhnPokerEnv, KuhnPokerEnvConfig
from kuhn_poker.game import INFORMATION_SETS
from kuhn_poker.strategy import equilibrium, expected_chips, exploitability
from kuhn_poker.taskset import KuhnPokerConfig, KuhnPokerData, KuhnPokerTask, KuhnPokerTaskset, conversation

__all__ = [
    "INFORMATION_SETS",
    "KuhnPokerConfig",
    "KuhnPokerData",
    "KuhnPokerEnv",
    "KuhnPokerEnvConfig",
    "KuhnPokerTask",
    "KuhnPokerTaskset",
    "conversation",
    "equilibrium",
    "expected_chips",
    "exploitability",
]
