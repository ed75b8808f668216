"""Checks that watches still deliver: every known change has to arrive as an event.

Our own writes, and objects that a list shows to be newer, are expected as events. If one does not arrive, the watch is
dead. Without this check, a process that still answers probes would hide that.
"""

from collections.abc import Callable, Iterable

from rljob_operator.cache import version_of
from rljob_operator.identity import Manifest

DEAD_AFTER_S = 90.0
"""kopf itself reconnects a silent stream after 70 s"""


class WatchLiveness:
    """The changes for which no event has arrived yet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._expected: dict[str, tuple[int, float]] = {}

    def expect(self, raw: Manifest) -> None:
        """Expect an event with this version of the object, or a newer one."""
        uid = raw["metadata"]["uid"]
        since = self._expected[uid][1] if uid in self._expected else self._clock()
        self._expected[uid] = (version_of(raw), since)

    def arrived(self, raw: Manifest, is_gone: bool) -> None:
        """Note an event with this version of the object."""
        uid = raw["metadata"]["uid"]
        if uid in self._expected and (is_gone or version_of(raw) >= self._expected[uid][0]):
            del self._expected[uid]

    def withdraw(self, uids: Iterable[str]) -> None:
        """Expect nothing more of objects that a list shows to be gone, or that cannot be watched now.

        No event has to report them: they were gone before the watch began.
        """
        for uid in uids:
            self._expected.pop(uid, None)

    @property
    def silent_s(self) -> float:
        """How long the oldest expected event is overdue [s]."""
        return max((self._clock() - since for _, since in self._expected.values()), default=0.0)

    @property
    def is_alive(self) -> bool:
        return self.silent_s < DEAD_AFTER_S
