"""Entry point of an environment worker process: `python -m braidrl.orchestrator.env_worker ADDRESS`.

The first line of standard input is the environment's config as JSON. Nothing else is written to it. End of file means
that the orchestrator has exited, and the worker exits too.
"""

import os
import signal
import sys

import msgspec
from verifiers.v1.serve import serve_env

from braidrl.utils.log import configure_logging


class ParentPipe:
    """Pipe from the orchestrator with the interface that `serve_env` expects of its `death_pipe`."""

    def recv(self) -> None:
        """Block until the orchestrator has exited."""
        # os.read, because a buffered read would hold the lock of sys.stdin at interpreter exit
        while os.read(sys.stdin.fileno(), 4096):
            pass


def main() -> None:
    # Ctrl-C in a terminal signals the whole process group, but only the orchestrator decides when workers stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    config = msgspec.json.decode(sys.stdin.buffer.readline())
    serve_env(
        max_workers=1,
        address=sys.argv[1],
        death_pipe=ParentPipe(),
        log_setup=configure_logging,
        config_data=config,
    )


if __name__ == "__main__":
    main()
