"""Ports of this machine."""

import socket


def free_port(host: str) -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
