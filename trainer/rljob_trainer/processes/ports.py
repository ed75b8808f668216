"""Free ports that no other program is going to take: below the ephemeral range and outside Ray's worker ports."""

import random
import socket

from rljob_api.errors import RunError
from rljob_api.exits import Exit

FIRST, LAST = 20000, 32767
"""Ray's workers take 10002-19999 and Linux hands out 32768-60999"""
TRIES = 200


class NoFreePortError(RunError, RuntimeError):
    """Nothing could be bound in the whole range."""

    exit = Exit.FAILED


def free_ports(host: str) -> tuple[int, int]:
    """Return two different ports that can be bound on `host` right now.

    They are bound together and then let go, so a race remains: callers must retry on conflict.
    """
    sockets: list[socket.socket] = []
    try:
        for _ in range(TRIES):
            if len(sockets) == 2:
                break
            candidate = socket.socket()
            try:
                candidate.bind((host, random.randint(FIRST, LAST)))
            except OSError:
                candidate.close()
            else:
                sockets.append(candidate)
        if len(sockets) < 2:
            raise NoFreePortError(f"find free ports on {host}: {TRIES} tries between {FIRST} and {LAST} failed")
        first, second = (bound.getsockname()[1] for bound in sockets)
        return first, second
    finally:
        for bound in sockets:
            bound.close()
