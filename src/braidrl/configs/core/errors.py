"""Configuration errors, each with the path of the key and a remedy."""

from dataclasses import dataclass


@dataclass
class ConfigError(ValueError):
    """An invalid configuration. The command line prints the error and exits with code 2."""

    path: str
    """Dotted path of the key (`trainer.optim.lr`), or the name of the file."""
    message: str
    """Value seen, requirement and remedy."""
    suggestion: str | None = None
    """Closest valid key, if the key is unknown."""
    origin: str | None = None
    """File that sets the key, or `command line`."""

    def __str__(self) -> str:
        hint = f"; did you mean {self.suggestion!r}?" if self.suggestion else ""
        where = f" [{self.origin}]" if self.origin else ""
        return f"{self.path}: {self.message}{hint}{where}" if self.path else f"{self.message}{hint}{where}"


class ConfigErrors(ValueError):
    """Several configuration errors found in one validation."""

    def __init__(self, errors: list[ConfigError]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self.errors = errors
