"""The rules of Kuhn poker (H. W. Kuhn, 1950).

Three cards, J < Q < K; each of two players antes a chip and gets one card. They act in turn, player 0 first:
bet (one chip) or pass. Two passes, or a bet that is called, end in a showdown; passing on a bet folds.
"""

from itertools import permutations

CARDS = "JQK"
"""In rising order."""
BET, PASS = "b", "p"
"""To bet on a bet is to call it; to pass on one is to fold."""
FORFEIT = "x"
"""In a history: the player wrote neither and loses the most that a hand can cost."""
DEALS: tuple[tuple[str, str], ...] = tuple((first, second) for first, second in permutations(CARDS, 2))
"""The cards of player 0 and player 1, all equally likely."""
DECISIONS = ("", "p", "b", "pb")
"""Histories at which somebody has to act."""
INFORMATION_SETS = tuple(card + history for history in DECISIONS for card in CARDS)
"""All that a player may know when it acts: its own card, then the history, such as `Qpb`."""
MOST = 2
"""Chips that a hand can cost."""


def to_act(history: str) -> int:
    """The player whose turn it is: 0 or 1."""
    return len(history) % 2


def is_over(history: str) -> bool:
    """Whether nobody has to act any more."""
    return history not in DECISIONS


def chips(deal: tuple[str, str], history: str) -> int:
    """What player 0 wins at the end of a hand, and player 1 loses: -2 to 2.

    Raises:
        ValueError: the hand is not over.
    """
    if not is_over(history):
        raise ValueError(f"the hand {history!r} is not over: player {to_act(history)} has to act")
    last = 1 - to_act(history)
    if history.endswith(FORFEIT):
        return MOST if last == 1 else -MOST
    if history.endswith(BET + PASS):
        return 1 if last == 1 else -1
    stake = MOST if history.endswith(BET) else 1
    return stake if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -stake
