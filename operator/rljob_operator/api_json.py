"""Reads answers, and the JSON of an API server, even if one object in it cannot be read. Pure.

An API server keeps objects that are nested 10,000 levels deep. Python's own reader ends at about a thousand, and with
it the whole page in which such an object comes. Nothing here recurses; what is nested deeper than that is cut.
"""

import json
import re
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from rljob_api.reading.depth import DEEPEST_OBJECT

LONGEST_LINE = 64 * 2**20
"""of a watch: an object of 3 MiB, an API server's limit, can be six times as long as JSON [bytes]"""

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)
"""texts, in which brackets mean nothing, and brackets"""
_AROUND = 3
"""levels around an object: a page, its list of items, or an event"""


def decoded(content: bytes) -> Any:
    """Return the value of a JSON text; what is nested deeper than any object of rljob is null.

    Raises ValueError if it is not JSON.
    """
    try:
        return json.loads(content)
    except RecursionError:
        return _leniently(_cut(content))
    except ValueError:  # or a number of more digits than Python reads
        return _leniently(content)


def _leniently(content: bytes) -> Any:
    try:
        return json.loads(content.decode(errors="replace"), parse_int=_number)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _number(text: str) -> int | float:
    """Return a whole number; one of hundreds of digits is infinite, as for every other reader."""
    return int(text) if len(text) < 300 else float(text)


def _cut(content: bytes) -> bytes:
    """Return the JSON with null for each list and mapping that is nested too deep."""
    kept: list[bytes] = []
    depth, begin, deepest = 0, 0, DEEPEST_OBJECT + _AROUND
    for found in _TOKEN.finditer(content):
        match content[found.start()]:
            case 0x5B | 0x7B:
                depth += 1
                if depth == deepest + 1:
                    kept += content[begin : found.start()], b"null"
            case 0x5D | 0x7D:
                if depth == deepest + 1:
                    begin = found.end()
                depth -= 1
    return b"".join([*kept, content[begin:]])


async def whole(chunks: AsyncIterable[bytes], most: int) -> bytes | None:
    """Return a stream as a whole; None: it has more than `most` bytes, and is read no further."""
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > most:
            return None
    return bytes(content)


async def lines(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a stream, without their ends; raise ValueError for one that is longer than any object."""
    rest = bytearray()
    async for chunk in chunks:
        seen = len(rest)
        rest += chunk
        begin = 0
        while (end := rest.find(b"\n", max(begin, seen))) >= 0:
            yield bytes(rest[begin:end])
            begin = end + 1
        del rest[:begin]
        if len(rest) > LONGEST_LINE:
            raise ValueError(f"a line has more than {LONGEST_LINE} bytes")
    if rest:
        yield bytes(rest)
