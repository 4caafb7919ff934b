"""Find a secret number; the environment, speaking as the user, says higher or lower."""

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
