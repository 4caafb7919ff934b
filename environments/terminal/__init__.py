"""Small errands in a shell: a simulated one, in which no process is started and every file is in memory, or that of the
agent's own harness."""

from terminal.env import TerminalEnv, TerminalEnvConfig
from terminal.shell import Shell
from terminal.taskset import TerminalConfig, TerminalData, TerminalState, TerminalTask, TerminalTaskset

__all__ = [
    "Shell",
    "TerminalConfig",
    "TerminalData",
    "TerminalEnv",
    "TerminalEnvConfig",
    "TerminalState",
    "TerminalTask",
    "TerminalTaskset",
]
