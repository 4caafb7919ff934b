"""The `terminal` environment, for agents that can run commands."""

import verifiers.v1 as vf
from pydantic import field_validator
from verifiers.v1.envs.single_agent import SingleAgentEnvConfig
from verifiers.v1.utils.loaders import harness_class

SIMULATED = "braid-chat"
"""Harness that offers the tool of the task, the simulated shell."""


def uses_real_shell(harness: vf.HarnessConfig | None) -> bool:
    """Return True if the harness runs commands in the agent's runtime, False if in the simulated shell.

    Raises:
        ValueError: the harness offers neither, so the agent could not run commands.
    """
    name = harness.id if harness is not None else SIMULATED
    if name == SIMULATED:
        return False
    if not harness_class(name).EXECUTES_CODE:
        raise ValueError(
            f"harness {name!r} gives the agent no shell: set harness.id = {SIMULATED!r} (the default) for the "
            'simulated shell, or choose a harness that runs commands, such as "bash"'
        )
    return True


class TerminalEnvConfig(SingleAgentEnvConfig):
    """Config of the environment, which has one agent."""

    @field_validator("agent")
    @classmethod
    def _has_a_shell(cls, value: vf.AgentConfig) -> vf.AgentConfig:
        uses_real_shell(value.harness)
        return value


class TerminalEnv(vf.Env[TerminalEnvConfig]):
    """One agent working on one task."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)
