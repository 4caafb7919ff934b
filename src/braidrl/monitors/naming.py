"""What the names of metrics say."""


def source_of(process: str, name: str) -> str | None:
    """The source whose mean reward a metric of `orchestrator` or `eval` is; None: it is something else."""
    prefix, suffix = ("eval/", "/reward/mean") if process == "eval" else ("reward/", "/mean")
    if process == "trainer" or not (name.startswith(prefix) and name.endswith(suffix)):
        return None
    return name[len(prefix) : -len(suffix)] or None
