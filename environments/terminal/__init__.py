"""Small tasks in a shell: a simulated shell that keeps files in memory and starts no process, or the shell of the
agent's harness."""

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
