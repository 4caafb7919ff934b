"""How good a strategy is, exactly.

A strategy (for both seats) is a table: the probability of a bet at each of the twelve information sets.
"""

import math
from collections.abc import Mapping
from itertools import product

from kuhn_poker.game import BET, CARDS, DEALS, DECISIONS, INFORMATION_SETS, PASS, chips, is_over, to_act

Strategy = Mapping[str, float]


def equilibrium(alpha: float = 0.0) -> dict[str, float]:
    """A Nash equilibrium. There is one for every `alpha` in [0, 1/3], the probability with which player 0
    bets on the jack first; player 1's half is unique. Player 0 loses 1/18 chip a hand (Kuhn, 1950)."""
    if not 0 <= alpha <= 1 / 3:
        raise ValueError(f"alpha must be in [0, 1/3], got {alpha}")
    return {
        **{"J": alpha, "Q": 0.0, "K": 3 * alpha},
        **{"Jpb": 0.0, "Qpb": alpha + 1 / 3, "Kpb": 1.0},
        **{"Jp": 1 / 3, "Qp": 0.0, "Kp": 1.0},
        **{"Jb": 0.0, "Qb": 1 / 3, "Kb": 1.0},
    }


def expected_chips(strategy: Strategy) -> float:
    """What player 0 wins in a hand on average when both seats play `strategy`; -1/18 at an equilibrium."""
    _check(strategy)
    return sum(_value(deal, "", strategy) for deal in DEALS) / len(DEALS)


def exploitability(strategy: Strategy) -> float:
    """How much a best response wins against `strategy` in a hand, in chips, averaged over the two seats:
    `(max_s u_0(s, strategy) + max_s u_1(strategy, s)) / 2`. It is 0 at an equilibrium, positive elsewhere,
    and half of what is called NashConv.

    Args:
        strategy: the probability of a bet at each of `INFORMATION_SETS`; other keys are ignored.

    Raises:
        ValueError: a missing information set, or a probability outside [0, 1].
    """
    _check(strategy)
    return sum(_best_response(strategy, seat) for seat in (0, 1)) / 2


def _best_response(strategy: Strategy, seat: int) -> float:
    """The most that `seat` can win against `strategy`: the best of its 64 pure strategies."""
    own = [card + history for history in DECISIONS if to_act(history) == seat for card in CARDS]
    pure = (dict(zip(own, bets, strict=True)) for bets in product((0.0, 1.0), repeat=len(own)))
    sign = 1 if seat == 0 else -1
    return max(sign * expected_chips({**strategy, **answer}) for answer in pure)


def _value(deal: tuple[str, str], history: str, strategy: Strategy) -> float:
    """What player 0 wins on average from here on."""
    if is_over(history):
        return chips(deal, history)
    bet = strategy[deal[to_act(history)] + history]
    outcomes = ((bet, BET), (1 - bet, PASS))
    return sum(share * _value(deal, history + action, strategy) for share, action in outcomes if share)


def _check(strategy: Strategy) -> None:
    for key in INFORMATION_SETS:
        share = strategy.get(key, math.nan)
        if not 0 <= share <= 1:
            raise ValueError(
                f"a strategy needs the probability of a bet, in [0, 1], at information set {key!r}; got "
                f"{strategy.get(key)!r}"
            )
