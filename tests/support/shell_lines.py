"""The commands in shell blocks of documents, word by word, without a shell."""

import re
import shlex
from collections.abc import Iterator

from tests.support.documents import Block

SHELLS = ("bash", "console", "sh", "shell", "zsh", "fish")
PROMPT = "$ "
"""Begins a line of a shown session that somebody typed."""


def commands_of(block: Block) -> Iterator[list[str]]:
    """Every simple command of a block of commands, or of a session that one shows: its words, without the variables
    that it sets and where its output goes."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language in SHELLS or line.startswith(PROMPT):
            yield from simple_commands(line.removeprefix(PROMPT).removesuffix(" ..."))


def simple_commands(line: str) -> Iterator[list[str]]:
    """The commands of a line, in whichever way it joins them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    command: list[str] = []
    words = iter(lexer)
    for word in words:
        if word in (">", ">>"):
            next(words)
        elif set(word) <= set("();<>|&"):
            yield from _without_variables(command)
            command = []
        else:
            command.append(word)
    yield from _without_variables(command)


def _without_variables(words: list[str]) -> Iterator[list[str]]:
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    if words:
        yield words
