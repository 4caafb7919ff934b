"""Parsing of the commands in shell blocks of documents, without a shell."""

import re
import shlex
from collections.abc import Iterator

from tests.support.documents import Block

SHELLS = ("bash", "console", "sh", "shell", "zsh", "fish")
PROMPT = "$ "
"""Prompt at the start of a typed line in a shown session."""


def commands_of(block: Block) -> Iterator[list[str]]:
    """Return the words of every simple command in a block of commands or a shown session, without variable assignments
    and redirections."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language in SHELLS or line.startswith(PROMPT):
            yield from simple_commands(line.removeprefix(PROMPT).removesuffix(" ..."))


def simple_commands(line: str) -> Iterator[list[str]]:
    """Return the commands of a line, joined by any operator."""
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
