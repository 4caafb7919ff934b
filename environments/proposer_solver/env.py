"""Episode of one proposal and the attempts at it."""

import asyncio

import verifiers.v1 as vf
from pydantic import Field

from braid_tasks import is_pinned
from proposer_solver.taskset import ProposerTask

PROPOSER, SOLVER = "proposer", "solver"


class ProposerSolverEnvConfig(vf.EnvConfig):
    """Config of the two roles. A role uses the run's model unless it sets its own model or client; it is then frozen
    and does not train."""

    proposer: vf.AgentConfig = vf.AgentConfig()
    """Agent that writes the problem."""
    solver: vf.AgentConfig = vf.AgentConfig()
    """Agent that tries to solve the problem, `n` times."""
    n: int = Field(4, ge=1)
    """Number of solver attempts per proposed problem. They run sequentially unless `max_concurrent_agents` allows
    more."""
    train_proposer: bool = True
    """True if the proposer's traces train."""
    train_solver: bool = True
    """True if the solver's traces train."""


class ProposerSolverEnv(vf.Env[ProposerSolverEnvConfig]):
    """One proposal and `n` attempts at it.

    A solver's reward is 1 for the right answer. The proposer's reward is 0 for an invalid problem and
    `usefulness(fraction of right answers)` for a valid one.
    """

    async def setup(self, agents: vf.Agents) -> None:
        config = self.config
        agents.proposer.trainable = config.train_proposer and not is_pinned(config.proposer)
        agents.solver.trainable = config.train_solver and not is_pinned(config.solver)

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        if not isinstance(task, ProposerTask):
            raise TypeError(
                f"proposer-solver cannot run a {type(task).__name__}; use tasks of its own taskset"
            )
        proposal = await agents.proposer.run(task)
        problem = task.data.problem(proposal.last_reply)
        if not proposal.ok or problem is None:
            return
        attempt = task.solver_task(problem)
        async with asyncio.TaskGroup() as attempts:
            for _ in range(self.config.n):
                attempts.create_task(agents.solver.run(attempt))

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        """Grade the proposer. Attempts that ended with an error do not count.

        Metrics: `valid`, and for a valid problem `solved` (fraction of right answers).

        Raises:
            RuntimeError: all attempts ended with an error, so the proposal cannot be graded.
        """
        (proposal,) = episode.by_agent[PROPOSER]
        if not proposal.ok:
            return
        attempts = episode.by_agent.get(SOLVER, [])
        proposal.record_metric("valid", bool(attempts))
        if not attempts:
            proposal.record_reward("usefulness", 0.0)
            return
        rewards = [trace.reward for trace in attempts if trace.ok]
        if not rewards:
            raise RuntimeError(f"cannot grade the proposal: all {len(attempts)} solver attempts failed")
        solved = sum(rewards) / len(rewards)
        proposal.record_metric("solved", solved)
        proposal.record_reward("usefulness", usefulness(solved))


def usefulness(solved: float) -> float:
    """Return 1/2 + 2 p (1 - p) for the fraction p of right answers.

    It is 1 for p = 1/2, where the variance p (1 - p) of a solver's reward and with it the training signal is largest,
    and 1/2 for p = 0 or 1.
    """
    return 0.5 + 2 * solved * (1 - solved)
