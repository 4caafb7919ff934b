"""Small errands in a simulated shell: no process is started, and every file is in memory."""

from terminal.shell import Shell
from terminal.taskset import TerminalConfig, TerminalData, TerminalState, TerminalTask, TerminalTaskset

__all__ = ["Shell", "TerminalConfig", "TerminalData", "TerminalState", "TerminalTask", "TerminalTaskset"]
