"""Connections are open files, and many systems allow a process no more than 1024 unless it asks."""

import sys


def allow_open_files() -> None:
    """Raise this process's limit of open files as far as it may; nothing where the system has no such limit."""
    if sys.platform == "win32":
        return
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
