"""Tools of a user, in the image of a pod of tools."""

import os
import time

IMPORTED_AT = time.monotonic()


def moment() -> float:
    """Return the time by a clock that all processes of this machine share."""
    return time.monotonic()


def was_imported_before(moment: float) -> bool:
    return moment > IMPORTED_AT


async def later(text: str) -> str:
    return text.upper()


def loud() -> str:
    return "x" * 2**21


def greedy(num_bytes: int = 2**30) -> str:
    return str(len(bytes(num_bytes)))


def rude() -> str:
    os._exit(3)
