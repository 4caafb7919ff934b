"""A hand of Kuhn poker."""

from contextlib import AsyncExitStack

import verifiers.v1 as vf

from braid_tasks import is_pinned
from kuhn_poker.game import FORFEIT, chips, is_over, to_act
from kuhn_poker.taskset import KuhnPokerTask, read_action

SEATS = ("player0", "player1")
HISTORY = "history"
"""Key of `trace.info` with the actions of the hand, in both traces."""


class KuhnPokerEnvConfig(vf.EnvConfig):
    """Config of the two seats. A seat uses the run's model unless it sets its own model or client; it is then a frozen
    opponent and does not train."""

    player0: vf.AgentConfig = vf.AgentConfig()
    """Player that acts first."""
    player1: vf.AgentConfig = vf.AgentConfig()
    """Player that acts second."""


class KuhnPokerEnv(vf.Env[KuhnPokerEnvConfig]):
    """One hand between two players. Each player's reward is the number of chips it wins; the rewards sum to 0.

    A reply that is not an action ends the hand and loses the maximum stake. If this is the first reply of the hand,
    player 1 has not acted and has no trace.
    """

    async def setup(self, agents: vf.Agents) -> None:
        for seat in SEATS:
            if is_pinned(getattr(self.config, seat)):
                getattr(agents, seat).trainable = False

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        if not isinstance(task, KuhnPokerTask):
            raise TypeError(
                f"kuhn-poker cannot run a {type(task).__name__}; use tasks of the kuhn-poker taskset"
            )
        async with AsyncExitStack() as table:
            seated: dict[int, vf.Interaction] = {}
            history = ""
            while not is_over(history):
                player = to_act(history)
                information_set = task.data.deal[player] + history
                if player in seated:
                    segment = await seated[player].turn(information_set)
                else:
                    agent = getattr(agents, SEATS[player])
                    seat = agent.interaction(task.seat(information_set))
                    seated[player] = await table.enter_async_context(seat)
                    segment = await seated[player].turn()
                if segment.terminated and seated[player].trace.errors:
                    error = seated[player].trace.errors[-1]
                    raise RuntimeError(f"{SEATS[player]} failed, so the hand has no result: {error.message}")
                history += read_action(segment.last_reply)
            for interaction in seated.values():
                interaction.trace.info[HISTORY] = history

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        """Record rewards and metrics: `chips_player0` or `chips_player1`, and `forfeit` (1 for a player whose reply
        was not an action)."""
        assert isinstance(task, KuhnPokerTask)
        for trace in episode.traces:
            history = trace.info[HISTORY]
            player = SEATS.index(trace.agent.name)
            won = chips(task.data.deal, history) * (1 if player == 0 else -1)
            trace.record_reward("chips", won)
            trace.record_metric(f"chips_{trace.agent.name}", won)
            last_player = 1 - to_act(history)
            trace.record_metric("forfeit", history.endswith(FORFEIT) and last_player == player)
