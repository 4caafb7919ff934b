"""A simulated shell with one folder of text files in memory."""

import shlex
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

MAX_OUTPUT = 2000
"""Maximum length of the output in characters; longer output is truncated."""
MAX_FILE = 10_000
"""Maximum length of a file in characters."""


class ShellError(Exception):
    """Failure of a command; the message is its output."""


class Shell:
    """Shell that runs single commands on `files` (name to content), which are modified in place.

    Commands: `ls`, `cat`, `head`, `wc`, `grep`, `echo`, `touch`, `rm`, `mv`, `cp`. The wildcards `*` and `?` and the
    redirections `> file` and `>> file` are supported. There are no folders, pipes, variables or options.
    """

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files
        self._commands: dict[str, Callable[[list[str]], str]] = {
            "ls": self._ls,
            "cat": self._cat,
            "head": self._head,
            "wc": self._wc,
            "grep": self._grep,
            "echo": self._echo,
            "touch": self._touch,
            "rm": self._rm,
            "mv": self._mv,
            "cp": self._cp,
        }

    def run(self, command: str) -> str:
        """Run `command` and return its output without the final newline.

        Raises:
            ShellError: the command failed. The files are unchanged.
        """
        words, target, append = self._parse(command)
        if not words:
            raise ShellError("there is no command")
        name, *arguments = words
        if name not in self._commands:
            raise ShellError(f"{name}: command not found; there are {', '.join(self._commands)}")
        output = self._commands[name](list(self._expand(arguments)))
        if target is None:
            return output[:MAX_OUTPUT].removesuffix("\n")
        self._write(target, (self.files.get(target, "") if append else "") + output)
        return ""

    def _parse(self, command: str) -> tuple[list[str], str | None, bool]:
        """Return the words before a redirection, its target file or None, and True if it appends."""
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            words = list(lexer)
        except ValueError as error:
            raise ShellError(f"syntax error: {error}") from None
        if unsupported := [word for word in words if word[0:1] in set(";<>|&()") and word not in (">", ">>")]:
            raise ShellError(f"syntax error: {unsupported[0]} is not supported")
        for sign in (">", ">>"):
            if sign in words:
                start = words.index(sign)
                if len(words) != start + 2 or words[-1] in (">", ">>"):
                    raise ShellError(f"syntax error: one file name must follow {sign}, at the end")
                return words[:start], words[-1], sign == ">>"
        return words, None, False

    def _expand(self, arguments: list[str]) -> Iterator[str]:
        for argument in arguments:
            matches = sorted(name for name in self.files if fnmatchcase(name, argument))
            yield from matches or [argument]

    def _read(self, command: str, name: str) -> str:
        if name not in self.files:
            raise ShellError(f"{command}: {name}: no such file")
        return self.files[name]

    def _write(self, name: str, content: str) -> None:
        if not name or "/" in name:
            raise ShellError(f"{name}: there are no folders")
        if len(content) > MAX_FILE:
            raise ShellError(f"{name}: no space left")
        self.files[name] = content

    def _some(self, command: str, arguments: list[str], least: int = 1, most: int | None = None) -> list[str]:
        if len(arguments) < least or (most is not None and len(arguments) > most):
            number = f"{least}" if least == most else f"{least} or more"
            raise ShellError(f"{command}: takes {number} arguments")
        return arguments

    def _ls(self, arguments: list[str]) -> str:
        names = arguments or sorted(self.files)
        for name in names:
            self._read("ls", name)
        return "".join(f"{name}\n" for name in names)

    def _cat(self, arguments: list[str]) -> str:
        return "".join(self._read("cat", name) for name in self._some("cat", arguments))

    def _head(self, arguments: list[str]) -> str:
        (name,) = self._some("head", arguments, 1, 1)
        return "".join(f"{line}\n" for line in self._read("head", name).splitlines()[:1])

    def _wc(self, arguments: list[str]) -> str:
        counts = ((self._read("wc", name), name) for name in self._some("wc", arguments))
        return "".join(f"{len(text.splitlines())} {len(text.split())} {name}\n" for text, name in counts)

    def _grep(self, arguments: list[str]) -> str:
        wanted, *names = self._some("grep", arguments, 2)
        found = [
            (f"{name}:{line}" if len(names) > 1 else line)
            for name in names
            for line in self._read("grep", name).splitlines()
            if wanted in line
        ]
        return "".join(f"{line}\n" for line in found)

    def _echo(self, arguments: list[str]) -> str:
        return " ".join(arguments) + "\n"

    def _touch(self, arguments: list[str]) -> str:
        for name in self._some("touch", arguments):
            self._write(name, self.files.get(name, ""))
        return ""

    def _rm(self, arguments: list[str]) -> str:
        for name in self._some("rm", arguments):
            self._read("rm", name)
        for name in set(arguments):
            del self.files[name]
        return ""

    def _mv(self, arguments: list[str]) -> str:
        source, target = self._some("mv", arguments, 2, 2)
        self._write(target, self._read("mv", source))
        if source != target:
            del self.files[source]
        return ""

    def _cp(self, arguments: list[str]) -> str:
        source, target = self._some("cp", arguments, 2, 2)
        self._write(target, self._read("cp", source))
        return ""
