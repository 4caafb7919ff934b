"""The dialogue of `guess-number`."""

import verifiers.v1 as vf

from guess_number.taskset import GuessNumberTask


class GuessNumberEnvConfig(vf.EnvConfig):
    """Config of the environment, which has one agent."""

    agent: vf.AgentConfig = vf.AgentConfig()
    """Agent that guesses."""


class GuessNumberEnv(vf.Env[GuessNumberEnvConfig]):
    """Answers every wrong guess until the number is found or the guesses are used up."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        if not isinstance(task, GuessNumberTask):
            raise TypeError(
                f"guess-number cannot run a {type(task).__name__}; use tasks of the guess-number taskset"
            )
        async with agents.agent.interaction(task) as dialogue:
            segment = await dialogue.turn()
            for _ in range(task.data.guesses - 1):
                feedback = task.data.feedback(segment.last_reply)
                if segment.terminated or feedback is None:
                    return
                segment = await dialogue.turn(feedback)
