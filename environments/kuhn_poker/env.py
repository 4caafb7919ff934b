"""A hand of Kuhn poker."""

from contextlib import AsyncExitStack

import verifiers.v1 as vf

from braid_tasks import is_pinned
from kuhn_poker.game import FORFEIT, chips, is_over, to_act
from kuhn_poker.taskset import KuhnPokerTask, read_action

SEATS = ("player0", "player1")
HISTORY = "history"
"""Key of `trace.info` under which both traces record the actions of the hand."""


class KuhnPokerEnvConfig(vf.EnvConfig):
    """Two seats. Each late-binds to the run's model; one that names a model or a client of its own is a
    frozen opponent and does not train."""

    player0: vf.AgentConfig = vf.AgentConfig()
    """Acts first."""
    player1: vf.AgentConfig = vf.AgentConfig()
    """Acts second."""


class KuhnPokerEnv(vf.Env[KuhnPokerEnvConfig]):
    """Each seat gets the chips that it wins as its reward; the two sum to 0.

    A reply that names no action ends the hand and costs the most that a hand can cost. If it is the very
    first one, player 1 has not acted and has no trace.
    """

    async def setup(self, agents: vf.Agents) -> None:
        for seat in SEATS:
            if is_pinned(getattr(self.config, seat)):
                getattr(agents, seat).trainable = False

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        if not isinstance(task, KuhnPokerTask):
            raise TypeError(f"kuhn-poker plays its own tasks, not {type(task).__name__}")
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
        """Pay out. Metrics: `chips_player0` or `chips_player1`, and `forfeit` (1 for who wrote no action)."""
        assert isinstance(task, KuhnPokerTask)
        for trace in episode.traces:
            history = trace.info[HISTORY]
            player = SEATS.index(trace.agent.name)
            won = chips(task.data.deal, history) * (1 if player == 0 else -1)
            trace.record_reward("chips", won)
            trace.record_metric(f"chips_{trace.agent.name}", won)
            last = 1 - to_act(history)
            trace.record_metric("forfeit", history.endswith(FORFEIT) and last == player)
