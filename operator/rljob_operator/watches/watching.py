"""The operator's watches: what they show reaches the cache, and jobs that it concerns the queue.

    Reflector ─► Watched ─► cache, liveness of the watches, queue

A place is a kind in a namespace, or in all. A place that the operator may not read is blind: nothing is expected of it,
and the others go on.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from rljob_api.errors import UNREADABLE
from rljob_api.foreign_text import said
from rljob_operator.cache.cache import Cache, Freshness, Key, is_ours, key_of
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.cache.workqueue import WorkQueue
from rljob_operator.cluster.cluster import (
    KINDS,
    LABELLED,
    OF_AGENT_SANDBOX,
    OF_KUEUE,
    PAGE,
    Cluster,
    ClusterError,
    path,
)
from rljob_operator.cluster.reflector import Reflector, named
from rljob_operator.identity import JOB_LABEL, KIND, Manifest

log = logging.getLogger(__name__)

FORBIDDEN, ABSENT = 403, 404
OF_OTHERS = (*OF_KUEUE, *OF_AGENT_SANDBOX)
"""kinds of projects without which most jobs run; the operator runs without their CRDs, too"""
IDENTITY = ("name", "namespace", "uid")
"""what an object cannot be kept without"""
FORGET_S = 900.0
"""after this time without a right to read its jobs, a namespace is gone: its objects hold nothing any more [s]"""


@dataclass(frozen=True, slots=True)
class Place:
    """A kind in a namespace."""

    kind: str
    namespace: str | None
    """None: all"""

    @property
    def query(self) -> list[tuple[str, str]]:
        """What narrows a list or watch down to our own objects."""
        return [("labelSelector", JOB_LABEL)] if self.kind in LABELLED else []


def places(kinds: Iterable[str], namespaces: Sequence[str]) -> Iterator[Place]:
    """Yield all places; no namespaces: the whole cluster."""
    everywhere: Sequence[str | None] = [None]
    for kind in kinds:
        yield from (Place(kind, namespace) for namespace in namespaces or everywhere)


@dataclass
class Inbox:
    """Takes in objects, from watches and from lists."""

    cache: Cache
    queue: WorkQueue
    watches: WatchLiveness
    skipped: Callable[[], None] = lambda: None
    """is called for each object that cannot be read"""
    unknown: set[Place] = field(default_factory=set)
    """places that were never listed, because that was refused"""
    _listed: set[Place] = field(default_factory=set)

    def take(self, raw: Manifest, is_gone: bool, kind: str) -> None:
        """Take in an object of a watch."""
        self._guarded(partial(self._seen, is_gone=is_gone), raw, kind)

    def lists(self, raw: Manifest, kind: str) -> None:
        """Take in an object of a list beside the watches, and expect an event with it if it was not seen yet."""

        def put(raw: Manifest) -> None:
            if is_ours(raw) and self.cache.put(raw) is not Freshness.STALE:
                self.watches.expect(raw)

        self._guarded(put, raw, kind)

    def is_known(self, namespace: str) -> bool:
        """Return whether all objects of this namespace were listed once: else its jobs seem to lack what they have."""
        return all(place.namespace not in (None, namespace) for place in self.unknown)

    def listed(self, place: Place, there: Collection[str], version: str) -> None:
        """Take in that a list of this version is complete."""
        self._listed.add(place)
        self.watches.sees(place.kind, place.namespace)
        gone = self.cache.remove_missing(place.kind, there, version, place.namespace)
        self.watches.withdraw(gone)
        self._queue(gone.values())
        if place in self.unknown:
            self.unknown.discard(place)
            self._queue(self.cache.jobs())

    def failed(self, place: Place, error: ClusterError) -> None:
        """Take in that a place cannot be read now: nothing is expected of it."""
        self.watches.loses(place.kind, place.namespace)
        is_absent = error.status == ABSENT and place.kind in OF_OTHERS
        if place not in self._listed and not is_absent:
            self.unknown.add(place)

    def _guarded(self, put: Callable[[Manifest], None], raw: Manifest, kind: str) -> None:
        """Skip an object that cannot be read, and say which: all others are seen."""
        try:
            if not all(isinstance(raw["metadata"].get(part), str) for part in IDENTITY):
                raise TypeError(f"its metadata lacks one of {', '.join(IDENTITY)}")
            put(raw)
        except UNREADABLE as error:
            log.warning("action=read kind=%s name=%s outcome=skipped: %s", kind, named(raw), said(error))
            self.skipped()

    def _seen(self, raw: Manifest, is_gone: bool) -> None:
        """Queue the job of an object that has changed: most events echo our own writes."""
        if not is_ours(raw):
            return
        self.watches.arrived(raw, is_gone)
        if is_gone:
            self.cache.remove(raw)
            self.queue.add(key_of(raw))
            return
        match self.cache.put(raw):
            case Freshness.CHANGED:
                self.queue.add(key_of(raw))
            case Freshness.EDITED:
                self.queue.retry(key_of(raw))
            case Freshness.UNCHANGED | Freshness.STALE:
                pass

    def forget(self, namespace: str) -> None:
        """Forget a namespace that is gone; what comes back into it is seen again."""
        self._queue(self.cache.forget(namespace))

    def _queue(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.queue.add(key)


@dataclass
class Watched:
    """One place that is followed."""

    place: Place
    inbox: Inbox
    clock: Callable[[], float]
    """monotonic seconds"""
    refused_since: float | None = field(default=None, init=False)

    def seen(self, raw: Manifest, is_gone: bool) -> None:
        """Take in an object as a list or a watch of its kind has it."""
        prefix, _ = KINDS[self.place.kind]
        whole = {"apiVersion": prefix.partition("/")[2], **raw, "kind": self.place.kind}
        self.inbox.take(whole, is_gone, self.place.kind)

    def listed(self, uids: Collection[str], version: str) -> None:
        self.refused_since = None
        self.inbox.listed(self.place, uids, version)

    def failed(self, error: ClusterError) -> None:
        """Forget a namespace of which the jobs may not be read for long."""
        self.inbox.failed(self.place, error)
        if error.status != FORBIDDEN or self.place.kind != KIND or self.place.namespace is None:
            self.refused_since = None
            return
        now = self.clock()
        self.refused_since = now if self.refused_since is None else self.refused_since
        if now - self.refused_since >= FORGET_S:
            self.inbox.forget(self.place.namespace)


def follow(cluster: Cluster, inbox: Inbox, wanted: Iterable[Place], clock: Callable[[], float]) -> list[Reflector]:
    """Return what follows these places."""
    return [
        Reflector(cluster, path(place.kind, place.namespace), place.query, Watched(place, inbox, clock), PAGE)
        for place in wanted
    ]
