"""Answers of a process that runs a user's function, read with distrust: code in it can write anything there.

bytes ──► is a message whole? ──► JSON, not too deep ──► the fields and types of `function_worker.py`, and no others
"""

import json
import struct
import sys
from collections.abc import Mapping
from typing import Any

HEADER = struct.Struct("!i")
"""before each message: its length, as `multiprocessing.connection` writes it [bytes]"""
MOST_BYTES = 1 << 20
"""of a message"""
LARGEST = sys.float_info.max
TYPES: Mapping[str, type] = {
    "number": str,
    "ready": bool,
    "is_async": bool,
    "refused": str,
    "scores": list,
    "text": str,
    "nothing": bool,
    "late": bool,
    "returned": str,
    "length": int,
    "raised": str,
    "memory": bool,
}
"""all fields"""
RESULTS = frozenset({"scores", "text", "nothing", "late", "returned", "length", "raised"})
"""of which the answer to a call has one"""
SCORES = frozenset({"scores", "late", "returned", "length", "raised"})
TEXT = frozenset({"text", "raised"})
ANY = frozenset({"scores", "text", "nothing", "late", "returned", "raised"})
"""results that a function may have: of a reward, of a tool, of an agent"""

Reply = Mapping[str, Any]


class AnswerError(ValueError):
    """Something that our own program does not write."""


def split(received: bytes) -> tuple[bytes | None, bytes]:
    """Return the first message, None if it is not whole yet, and what follows it. Raises AnswerError."""
    if len(received) < HEADER.size:
        return None, received
    (length,) = HEADER.unpack_from(received)
    if not 0 < length <= MOST_BYTES:
        raise AnswerError(f"a message of {length} bytes")
    end = HEADER.size + length
    return (received[HEADER.size : end], received[end:]) if len(received) >= end else (None, received)


def introduction(message: bytes) -> Reply:
    """Return what a process says that has loaded its function, or cannot. Raises AnswerError."""
    found = _fields(message)
    if found.keys() not in ({"ready", "is_async"}, {"refused"}):
        raise AnswerError(f"an introduction with {', '.join(found)}")
    return found


def result(message: bytes, kinds: frozenset[str]) -> Reply:
    """Return the answer to a call, which has one of these kinds of results. Raises AnswerError."""
    found = _fields(message)
    given = found.keys() & RESULTS
    if "number" not in found or len(given) != 1 or not given <= kinds:
        raise AnswerError(f"an answer with {', '.join(found)}")
    if not all(type(score) in (int, float) and abs(score) <= LARGEST for score in found.get("scores", ())):
        raise AnswerError("scores that are no finite numbers")
    return found


def _fields(message: bytes) -> Reply:
    try:
        found = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"no JSON: {type(error).__name__}") from error
    if not isinstance(found, dict):
        raise AnswerError("no JSON object")
    for name, value in found.items():
        if type(value) is not TYPES.get(name):
            raise AnswerError(f"a field {name!r:.40} of {type(value).__name__}")
    return found
