"""Checks that watches still deliver: every known change has to arrive as an event.

Our own writes, and objects that a list shows to be newer, are expected as events. If one does not arrive, the watch is
dead. Without this check, a process that still answers probes would hide that.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rljob_operator.cache.cache import version_of
from rljob_operator.identity import Manifest

DEAD_AFTER_S = 90.0
"""an event is there in a second; a watch that has ended is begun again in a few [s]"""


@dataclass(frozen=True, slots=True)
class Expected:
    """An event that has not arrived."""

    version: int
    since: float
    place: tuple[str, str | None]
    """kind and namespace"""


class WatchLiveness:
    """The changes for which no event has arrived yet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._expected: dict[str, Expected] = {}
        self._lost: set[tuple[str, str | None]] = set()
        """kinds, and namespaces or None for all, of which there is no watch now"""

    def expect(self, raw: Manifest) -> None:
        """Expect an event with this version of the object, or a newer one."""
        uid, place = raw["metadata"]["uid"], (raw["kind"], raw["metadata"].get("namespace"))
        if self._lost and (place in self._lost or (place[0], None) in self._lost):
            return
        since = self._expected[uid].since if uid in self._expected else self._clock()
        self._expected[uid] = Expected(version_of(raw), since, place)

    def arrived(self, raw: Manifest, is_gone: bool) -> None:
        """Note an event with this version of the object."""
        uid = raw["metadata"]["uid"]
        if uid in self._expected and (is_gone or version_of(raw) >= self._expected[uid].version):
            del self._expected[uid]

    def withdraw(self, uids: Iterable[str]) -> None:
        """Expect nothing more of objects that a list shows to be gone: perhaps they were before the watch began."""
        for uid in uids:
            self._expected.pop(uid, None)

    def loses(self, kind: str, namespace: str | None) -> None:
        """Expect nothing of a kind in a namespace, or in all, until `sees`: it is known that there is no watch.

        The API server refuses it, or does not answer. Another process would have no watch, either.
        """
        self._lost.add((kind, namespace))
        gone = [uid for uid, each in self._expected.items() if each.place == (kind, namespace or each.place[1])]
        self.withdraw(gone)

    def sees(self, kind: str, namespace: str | None) -> None:
        """Expect events of a kind in a namespace, or in all, again."""
        self._lost.discard((kind, namespace))

    @property
    def lost(self) -> int:
        """How many watches there should be and are not."""
        return len(self._lost)

    @property
    def silent_s(self) -> float:
        """How long the oldest expected event is overdue [s]."""
        oldest = min((each.since for each in tuple(self._expected.values())), default=None)
        return 0.0 if oldest is None else self._clock() - oldest

    @property
    def is_alive(self) -> bool:
        return self.silent_s < DEAD_AFTER_S
