"""Who may play `terminal`: an agent that can run commands."""

import verifiers.v1 as vf
from pydantic import field_validator
from verifiers.v1.envs.single_agent import SingleAgentEnvConfig
from verifiers.v1.utils.loaders import harness_class

SIMULATED = "braid-chat"
"""The harness that offers the task's own tool, the simulated shell."""


def uses_real_shell(harness: vf.HarnessConfig | None) -> bool:
    """Whether an agent with this harness runs its commands in its runtime; False: in the simulated shell.

    Raises:
        ValueError: the harness offers neither, so that the agent could do nothing.
    """
    name = harness.id if harness is not None else SIMULATED
    if name == SIMULATED:
        return False
    if not harness_class(name).EXECUTES_CODE:
        raise ValueError(
            f"harness {name!r} gives the agent no shell: set harness.id = {SIMULATED!r} (or leave it out) for the "
            'simulated one, or name a harness that runs commands itself, such as "bash"'
        )
    return True


class TerminalEnvConfig(SingleAgentEnvConfig):
    """One agent runs the errands."""

    @field_validator("agent")
    @classmethod
    def _has_a_shell(cls, value: vf.AgentConfig) -> vf.AgentConfig:
        uses_real_shell(value.harness)
        return value


class TerminalEnv(vf.Env[TerminalEnvConfig]):
    """An errand, run once."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.agent.run(task)
