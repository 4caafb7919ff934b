"""Errands, the random tasks of `terminal`."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Goal = Literal["read", "find", "move", "write"]
DONE = "done"
"""Demonstrated reply of an errand without an answer."""
_WORDS = """
fig kiwi lime pear plum apple grape lemon mango melon olive peach bean corn kale leek okra onion
bee bat cat cow dog elk emu fox hen owl pig ram rat yak ant bear crab deer duck frog goat hawk
ink map pen cup jar key lid mug net oar pan rug saw tub urn van axe bell
"""
WORDS = tuple(_WORDS.split())
"""Possible contents of files."""
NAMES = tuple("abcdefghijklmnopqrstuvwxyz")
"""Possible names of files."""


@dataclass(frozen=True)
class Errand:
    """A request with the files at the start and the files required at the end."""

    goal: Goal
    request: str
    """The user message."""
    files: dict[str, str]
    """Files at the start, by name. Each contains one word and a newline."""
    wanted: dict[str, str]
    """Required files at the end, by name."""
    answer: str | None
    """Required reply. None if any reply is accepted."""
    command: str
    """Command that completes the errand."""


def draw_errand(goal: Goal, generator: random.Random, num_files: int) -> Errand:
    """Draw an errand with this goal and `num_files` files with different names and words."""
    names = generator.sample(NAMES, num_files + 1)
    words = generator.sample(WORDS, num_files + 1)
    new_name, new_word = names.pop(), words.pop()
    files = {name: f"{word}\n" for name, word in sorted(zip(names, words, strict=True))}
    return _MAKERS[goal](files, names[0], words[0], new_name, new_word)


def _read(files: dict[str, str], name: str, word: str, new_name: str, new_word: str) -> Errand:
    return Errand("read", f"What is in {name}?", files, files, word, f"cat {name}")


def _find(files: dict[str, str], name: str, word: str, new_name: str, new_word: str) -> Errand:
    return Errand("find", f"Which file holds {word}?", files, files, name, f"grep {word} *")


def _move(files: dict[str, str], name: str, word: str, new_name: str, new_word: str) -> Errand:
    wanted = {(new_name if key == name else key): text for key, text in files.items()}
    return Errand("move", f"Rename {name} to {new_name}.", files, wanted, None, f"mv {name} {new_name}")


def _write(files: dict[str, str], name: str, word: str, new_name: str, new_word: str) -> Errand:
    wanted = files | {name: f"{new_word}\n"}
    return Errand("write", f"Put {new_word} into {name}.", files, wanted, None, f"echo {new_word} > {name}")


_MAKERS: dict[Goal, Callable[[dict[str, str], str, str, str, str], Errand]] = {
    "read": _read,
    "find": _find,
    "move": _move,
    "write": _write,
}
