"""Rules of Kuhn poker (H. W. Kuhn, 1950).

There are three cards, J < Q < K. Each of two players antes one chip and receives one card. The players alternate,
starting with player 0: bet one chip, or pass. The hand ends in a showdown after two passes or a called bet. Passing
after a bet folds.
"""

from itertools import permutations

CARDS = "JQK"
"""Cards in ascending order."""
BET, PASS = "b", "p"
"""Actions. After a bet, `BET` calls and `PASS` folds."""
FORFEIT = "x"
"""Mark in a history for a reply that is not an action. The player loses `MAX_CHIPS`."""
DEALS: tuple[tuple[str, str], ...] = tuple((first, second) for first, second in permutations(CARDS, 2))
"""Cards of player 0 and player 1 in each deal; all deals are equally likely."""
DECISIONS = ("", "p", "b", "pb")
"""Histories after which a player has to act."""
INFORMATION_SETS = tuple(card + history for history in DECISIONS for card in CARDS)
"""Information of a player at each decision: its own card followed by the history, such as `Qpb`."""
MAX_CHIPS = 2
"""Maximum number of chips that a player can lose in a hand."""


def to_act(history: str) -> int:
    """Return the player that acts next: 0 or 1."""
    return len(history) % 2


def is_over(history: str) -> bool:
    """Return True if the hand has ended."""
    return history not in DECISIONS


def chips(deal: tuple[str, str], history: str) -> int:
    """Return the chips that player 0 wins and player 1 loses in a finished hand, -2 to 2.

    Raises:
        ValueError: the hand is not over.
    """
    if not is_over(history):
        raise ValueError(f"the hand {history!r} is not over: player {to_act(history)} has to act")
    last_player = 1 - to_act(history)
    if history.endswith(FORFEIT):
        return MAX_CHIPS if last_player == 1 else -MAX_CHIPS
    if history.endswith(BET + PASS):  # a fold
        return 1 if last_player == 1 else -1
    stake = MAX_CHIPS if history.endswith(BET) else 1
    return stake if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -stake
