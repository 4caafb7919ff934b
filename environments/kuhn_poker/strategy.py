"""Exact values of strategies.

A strategy for both seats is a table with the probability of a bet at each of the twelve information sets.
"""

import math
from collections.abc import Mapping
from itertools import product

from kuhn_poker.game import BET, CARDS, DEALS, DECISIONS, INFORMATION_SETS, PASS, chips, is_over, to_act

Strategy = Mapping[str, float]


def equilibrium(alpha: float = 0.0) -> dict[str, float]:
    """Return a Nash equilibrium. Player 0 loses 1/18 chip per hand (Kuhn, 1950).

    Args:
        alpha: probability in [0, 1/3] that player 0 opens with a bet on the jack. There is one equilibrium for each
            value; the strategy of player 1 is unique.
    """
    if not 0 <= alpha <= 1 / 3:
        raise ValueError(f"alpha must be in [0, 1/3], got {alpha}")
    return {
        **{"J": alpha, "Q": 0.0, "K": 3 * alpha},
        **{"Jpb": 0.0, "Qpb": alpha + 1 / 3, "Kpb": 1.0},
        **{"Jp": 1 / 3, "Qp": 0.0, "Kp": 1.0},
        **{"Jb": 0.0, "Qb": 1 / 3, "Kb": 1.0},
    }


def expected_chips(strategy: Strategy) -> float:
    """Return the expected chips of player 0 per hand if both seats play `strategy`; -1/18 at an equilibrium."""
    _check(strategy)
    return sum(_value(deal, "", strategy) for deal in DEALS) / len(DEALS)


def exploitability(strategy: Strategy) -> float:
    """Return the expected chips per hand of a best response to `strategy`, averaged over the two seats.

    This is `(max_s u_0(s, strategy) + max_s u_1(strategy, s)) / 2`, half of NashConv: 0 at an equilibrium, positive
    elsewhere.

    Args:
        strategy: probability of a bet at each of `INFORMATION_SETS`. Other keys are ignored.

    Raises:
        ValueError: an information set is missing, or a probability is outside [0, 1].
    """
    _check(strategy)
    return sum(_best_response(strategy, seat) for seat in (0, 1)) / 2


def _best_response(strategy: Strategy, seat: int) -> float:
    """Return the maximum expected chips of `seat` against `strategy`."""
    # Some pure strategy is a best response, so it is enough to try all 2^6 of them.
    own = [card + history for history in DECISIONS if to_act(history) == seat for card in CARDS]
    pure = (dict(zip(own, bets, strict=True)) for bets in product((0.0, 1.0), repeat=len(own)))
    sign = 1 if seat == 0 else -1
    return max(sign * expected_chips({**strategy, **answer}) for answer in pure)


def _value(deal: tuple[str, str], history: str, strategy: Strategy) -> float:
    """Return the expected chips of player 0, given the deal and the history so far."""
    if is_over(history):
        return chips(deal, history)
    bet = strategy[deal[to_act(history)] + history]
    outcomes = ((bet, BET), (1 - bet, PASS))
    return sum(share * _value(deal, history + action, strategy) for share, action in outcomes if share)


def _check(strategy: Strategy) -> None:
    for key in INFORMATION_SETS:
        bet = strategy.get(key, math.nan)
        if not 0 <= bet <= 1:
            raise ValueError(
                f"a strategy needs the probability of a bet, in [0, 1], at information set {key!r}; got "
                f"{strategy.get(key)!r}"
            )
