"""The body of an answer, with limits of length and slowness. Apart, because httpx takes half a second to import."""

import time
from collections.abc import Iterator

import httpx

LEAST_BYTES_PER_S = 4096
WINDOW_S = 60.0
"""of waiting, over which that is measured [s]"""


class SlowAnswerError(httpx.ReadError):
    """An answer drips. huggingface_hub repeats no request after it, while one that timed out begins anew for ever."""


class LimitedBody(httpx.SyncByteStream):
    """What another stream yields; raises `too_long` in place of what is too much, and SlowAnswerError.

    Only waiting for the other side counts, not what the reader does between.
    """

    def __init__(self, body: httpx.SyncByteStream, most_bytes: int | None, too_long: Exception) -> None:
        self._body = body
        self._too_long = too_long
        self._most_bytes = most_bytes

    def __iter__(self) -> Iterator[bytes]:
        read, came, waited_s = 0, 0, 0.0
        begun = time.monotonic()
        for piece in self._body:
            waited_s += time.monotonic() - begun
            read, came = read + len(piece), came + len(piece)
            if self._most_bytes is not None and read > self._most_bytes:
                raise self._too_long
            if waited_s >= WINDOW_S:
                if came < LEAST_BYTES_PER_S * waited_s:
                    raise SlowAnswerError(
                        f"{came} bytes in {waited_s:.0f} s; at least {LEAST_BYTES_PER_S} bytes in a second are wanted"
                    )
                came, waited_s = 0, 0.0
            yield piece
            begun = time.monotonic()

    def close(self) -> None:
        self._body.close()
