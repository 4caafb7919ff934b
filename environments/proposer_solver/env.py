"""One proposal and the attempts at it."""

import asyncio

import verifiers.v1 as vf
from pydantic import Field

from braid_tasks import is_pinned
from proposer_solver.taskset import ProposerTask

PROPOSER, SOLVER = "proposer", "solver"


class ProposerSolverEnvConfig(vf.EnvConfig):
    """Two roles. Each late-binds to the run's model; one that names a model or a client of its own is frozen
    and does not train."""

    proposer: vf.AgentConfig = vf.AgentConfig()
    """Writes the problem."""
    solver: vf.AgentConfig = vf.AgentConfig()
    """Tries to solve it, `n` times."""
    n: int = Field(4, ge=1)
    """Solver attempts at each proposed problem. They run one after another unless `max_concurrent_agents`
    allows more."""
    train_proposer: bool = True
    """Whether the proposer's traces train."""
    train_solver: bool = True
    """Whether the solvers' traces train."""


class ProposerSolverEnv(vf.Env[ProposerSolverEnvConfig]):
    """A solver earns 1 for the right answer. The proposer earns 0 for what is no problem of the kind that was
    asked for, and `usefulness(share of solvers that were right)` for one that is."""

    async def setup(self, agents: vf.Agents) -> None:
        config = self.config
        agents.proposer.trainable = config.train_proposer and not is_pinned(config.proposer)
        agents.solver.trainable = config.train_solver and not is_pinned(config.solver)

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        if not isinstance(task, ProposerTask):
            raise TypeError(f"proposer-solver plays its own tasks, not {type(task).__name__}")
        proposal = await agents.proposer.run(task)
        problem = task.data.problem(proposal.last_reply)
        if not proposal.ok or problem is None:
            return
        attempt = task.solver_task(problem)
        async with asyncio.TaskGroup() as attempts:
            for _ in range(self.config.n):
                attempts.create_task(agents.solver.run(attempt))

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        """Grade the proposer. Attempts that failed for another reason than a wrong answer do not count.
        Metrics: `valid`, and `solved` (the share of right answers) of a valid problem.

        Raises:
            RuntimeError: no attempt came to an end, so that nobody knows how useful the problem was.
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
            raise RuntimeError(f"all {len(attempts)} solver attempts failed; the proposal cannot be graded")
        solved = sum(rewards) / len(rewards)
        proposal.record_metric("solved", solved)
        proposal.record_reward("usefulness", usefulness(solved))


def usefulness(solved: float) -> float:
    """1/2 + 2 p (1 - p) for the share p of solvers that were right: 1 if half of them were, which teaches
    the most (the variance of a solver's reward is p (1 - p)), 1/2 if all or none were."""
    return 0.5 + 2 * solved * (1 - solved)
