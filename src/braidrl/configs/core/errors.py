"""Configuration errors: one clear message each, with the key's path and the way out."""

from dataclasses import dataclass


@dataclass
class ConfigError(ValueError):
    """What is wrong with a configuration. The command line prints it and exits with code 2."""

    path: str
    """Dotted path of the key (`trainer.optim.lr`), or what else is concerned (a file)."""
    message: str
    """What was seen, what is required, and the remedy."""
    suggestion: str | None = None
    """Nearest valid key, for an unknown one."""
    origin: str | None = None
    """File that sets the key, or `command line`."""

    def __str__(self) -> str:
        hint = f"; did you mean {self.suggestion!r}?" if self.suggestion else ""
        where = f" [{self.origin}]" if self.origin else ""
        return f"{self.path}: {self.message}{hint}{where}" if self.path else f"{self.message}{hint}{where}"


class ConfigErrors(ValueError):
    """Several configuration errors that were found together."""

    def __init__(self, errors: list[ConfigError]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self.errors = errors
