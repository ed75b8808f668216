"""The body of an answer, up to a limit. Apart, because httpx takes half a second to import."""

from collections.abc import Iterator

import httpx


class AnswerTooLongError(Exception):
    """An answer goes on behind the limit."""


class LimitedBody(httpx.SyncByteStream):
    """What another stream yields; raises AnswerTooLongError in place of what is too much."""

    def __init__(self, body: httpx.SyncByteStream, most_bytes: int) -> None:
        self._body = body
        self._most_bytes = most_bytes

    def __iter__(self) -> Iterator[bytes]:
        left = self._most_bytes
        for piece in self._body:
            left -= len(piece)
            if left < 0:
                raise AnswerTooLongError
            yield piece

    def close(self) -> None:
        self._body.close()
