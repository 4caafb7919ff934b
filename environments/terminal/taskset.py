"""The `terminal` taskset: complete an errand in a shell, then report."""

import json
import random
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from braid_chat import tool, tool_schemas
from braid_tasks import DrawnConfig
from terminal.env import uses_real_shell
from terminal.errands import DONE, NAMES, Errand, Goal, draw_errand
from terminal.shell import Shell, ShellError


class TerminalConfig(DrawnConfig):
    """Config of the `terminal` taskset. The splits share no errand."""

    goals: list[Goal] = Field(["read", "find", "move", "write"], min_length=1)
    """Kinds of errands, drawn uniformly: read a file, find the file that contains a word, rename a file, write a word
    into a file."""
    num_files: int = Field(3, ge=1, lt=len(NAMES))
    """Number of files at the start."""
    max_commands: int = Field(6, ge=1)
    """Maximum number of commands. The episode ends when it is reached."""


class TerminalState(vf.State):
    """Shell of one rollout."""

    files: dict[str, str] = Field(default_factory=dict)
    """Current files of the simulated shell, or the final files of a real shell, by name."""
    failed: int = 0
    """Number of commands that failed in the simulated shell."""


class TerminalData(vf.TaskData):
    """An errand."""

    goal: Goal
    files: dict[str, str]
    """Files at the start, by name."""
    wanted: dict[str, str]
    """Required files at the end, by name."""
    answer: str | None
    """Required reply. None if any reply is accepted."""
    max_commands: int
    demonstration: list[dict[str, Any]]
    """Demonstrated dialogue: a command that completes the errand, its output, and the report."""

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Schemas of the tools that the demonstration uses."""
        return tool_schemas(self)

    @tool
    def sh(self, command: str, state: TerminalState) -> str:
        """Run a shell command."""
        try:
            return Shell(state.files).run(command)
        except ShellError as error:
            state.failed += 1
            return str(error)


class TerminalTask(vf.Task[TerminalData, TerminalState]):
    """Task graded by the final files and the report."""

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Create the files, in memory or in the folder of the agent's runtime."""
        trace.state.files = dict(self.data.files)
        if uses_real_shell(trace.agent.config.harness):
            for name, text in self.data.files.items():
                await runtime.write(name, text.encode())

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Read the final files from the agent's runtime if it has a real shell."""
        if uses_real_shell(trace.agent.config.harness):
            names = self.data.files | self.data.wanted
            found = {name: await runtime.run(["cat", name], {}) for name in names}
            trace.state.files = {name: cat.stdout for name, cat in found.items() if cat.exit_code == 0}

    @vf.stop
    async def out_of_commands(self, trace: vf.Trace) -> bool:
        """Return True when the maximum number of commands is reached."""
        return count_commands(trace) >= self.data.max_commands

    @vf.reward
    async def done(self, trace: vf.Trace) -> float:
        """Return 1 if the files are as required and the reply is the answer (if one is required), else 0."""
        answered = self.data.answer is None or trace.last_reply == self.data.answer
        return float(answered and trace.state.files == self.data.wanted)

    @vf.metric
    async def commands(self, trace: vf.Trace) -> dict[str, float]:
        """Return the number of commands, the number of those that failed in the simulated shell, and the reward by
        goal."""
        counts = {"commands": float(count_commands(trace)), "failed_commands": float(trace.state.failed)}
        return counts | {f"done_{self.data.goal}": await self.done(trace)}


class TerminalTaskset(vf.Taskset[TerminalTask, TerminalConfig]):
    """Random errands with a few files."""

    def load(self) -> Iterator[TerminalTask]:
        for errand in self.config.draw(self._draw, key=lambda errand: f"{errand.request} {errand.files}"):
            data = TerminalData(
                prompt=errand.request,
                goal=errand.goal,
                files=errand.files,
                wanted=errand.wanted,
                answer=errand.answer,
                max_commands=self.config.max_commands,
                demonstration=_demonstration(errand),
            )
            yield TerminalTask(data, self.config.task)

    def _draw(self, generator: random.Random) -> Errand:
        return draw_errand(generator.choice(self.config.goals), generator, self.config.num_files)


def count_commands(trace: vf.Trace) -> int:
    """Return the number of the agent's tool calls, malformed ones included."""
    return sum(len(message.tool_calls or ()) for message in trace.assistant_messages)


def _demonstration(errand: Errand) -> list[dict[str, Any]]:
    function = {"name": "sh", "arguments": json.dumps({"command": errand.command})}
    call = {"id": "call_0", "type": "function", "function": function}
    output = Shell(dict(errand.files)).run(errand.command)
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "name": "sh", "content": output},
        {"role": "assistant", "content": errand.answer or DONE},
    ]
