"""Find a secret number. The environment answers each guess, as the user, with higher or lower."""

from guess_number.env import GuessNumberEnv, GuessNumberEnvConfig
from guess_number.taskset import GuessNumberConfig, GuessNumberData, GuessNumberTask, GuessNumberTaskset

__all__ = [
    "GuessNumberConfig",
    "GuessNumberData",
    "GuessNumberEnv",
    "GuessNumberEnvConfig",
    "GuessNumberTask",
    "GuessNumberTaskset",
]
