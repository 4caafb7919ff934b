"""The process of an environment worker: `python -m braidrl.orchestrator.env_worker ADDRESS`.

The first line of its standard input is the environment's config. The rest stays empty: when it ends, so has the
orchestrator, and the worker ends too.
"""

import os
import signal
import sys

import msgspec
from verifiers.v1.serve import serve_env

from braidrl.utils.log import configure_logging


class Orchestrator:
    """What verifiers waits for: an end of a pipe."""

    def recv(self) -> None:
        """Returns when the orchestrator has ended."""
        while os.read(sys.stdin.fileno(), 4096):  # a buffered read would hold a lock when this process ends
            pass


def main() -> None:
    # an interrupt from the terminal reaches the whole group; the orchestrator says when to stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    config = msgspec.json.decode(sys.stdin.buffer.readline())
    serve_env(
        max_workers=1,
        address=sys.argv[1],
        death_pipe=Orchestrator(),
        log_setup=configure_logging,
        config_data=config,
    )


if __name__ == "__main__":
    main()
