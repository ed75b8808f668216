"""Chooses TCP ports that nobody uses."""

import random
import socket

from local_cluster.errors import ClusterError

RANGE = range(20000, 32000)
"""below the ephemeral ports, so that an outgoing connection does not take a port between the choice and its use"""


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on, at random: two clusters that start at once rarely choose the same."""
    for port in random.sample(RANGE, 100):
        if _is_free(address, port):
            return port
    raise ClusterError(f"100 random ports of {address}:{RANGE.start}-{RANGE.stop} are all in use; see `ss -ltn`")


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind((address, port))
        except OSError:
            return False
        return True
