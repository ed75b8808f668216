"""Proves that watches still deliver: whatever is known to have changed has to come back as an event.

What we write, and what a list shows to be newer than the last event, is expected; silence about it is a dead watch,
which a process that still answers probes would otherwise hide for ever.
"""

from collections.abc import Callable

from rljob_operator.cache import version_of
from rljob_operator.identity import Manifest

DEAD_AFTER_S = 90.0
"""kopf itself reconnects a silent stream after 70 s"""


class Pulse:
    """The changes that no event has shown yet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._expected: dict[str, tuple[int, float]] = {}

    def expect(self, raw: Manifest) -> None:
        """An event of this version of the object, or of a newer one, has to come."""
        uid = raw["metadata"]["uid"]
        since = self._expected[uid][1] if uid in self._expected else self._clock()
        self._expected[uid] = (version_of(raw), since)

    def heard(self, raw: Manifest, is_gone: bool) -> None:
        """An event of this version of the object has come."""
        uid = raw["metadata"]["uid"]
        if uid in self._expected and (is_gone or version_of(raw) >= self._expected[uid][0]):
            del self._expected[uid]

    @property
    def silent_s(self) -> float:
        """How long the oldest of the expected events is missing [s]."""
        return max((self._clock() - since for _, since in self._expected.values()), default=0.0)

    @property
    def is_alive(self) -> bool:
        return self.silent_s < DEAD_AFTER_S
