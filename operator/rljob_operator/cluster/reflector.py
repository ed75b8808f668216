"""Follows the objects of one path: a list in small pages, then a watch. All I/O is `Cluster`'s.

    list ─► seen, listed ─► watch ─► seen ─► (it ends) ─► watch again, or list again

Nothing here holds up the event loop for longer than one page, or one event, takes to read. An object that cannot be
read is skipped: the others go on.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from rljob_api.errors import UNREADABLE
from rljob_api.foreign_text import printable, said
from rljob_operator.cluster.cluster import Cluster, ClusterError
from rljob_operator.identity import Manifest

log = logging.getLogger(__name__)

PAGE = 25
"""objects of a page: a few milliseconds to read, where 500 take a tenth of a second"""
RETRY_S = 2.0
"""after a request that failed [s]"""
LONGEST_RETRY_S = 60.0
"""after many that failed one after the other [s]"""
PAUSE_S = 0.5
"""between two watches: a proxy may end each at once [s]"""


class Sink(Protocol):
    """Takes in what is followed."""

    def seen(self, raw: Manifest, is_gone: bool) -> None:
        """Take in an object that is new, has changed or is gone; an object that this raises for is skipped."""

    def listed(self, uids: Collection[str], version: str) -> None:
        """Take in that a list of this version is complete: there are no objects but these."""

    def failed(self, error: ClusterError) -> None:
        """Take in that the objects cannot be followed now."""


class Kept:
    """A sink that says what to keep and what to forget."""

    def __init__(self, put: Callable[[Manifest], None], remove: Callable[[str], None]) -> None:
        """`put` takes an object that is new or has changed, `remove` the uid of one that is gone."""
        self._put, self._remove = put, remove
        self._there: set[str] = set()

    def seen(self, raw: Manifest, is_gone: bool) -> None:
        uid = raw["metadata"]["uid"]
        if is_gone:
            self._there.discard(uid)
            self._remove(uid)
        else:
            self._there.add(uid)
            self._put(raw)

    def listed(self, uids: Collection[str], version: str) -> None:
        for uid in self._there.difference(uids):
            self._remove(uid)
        self._there.intersection_update(uids)

    def failed(self, error: ClusterError) -> None:
        """Keep what was known."""


class Reflector:
    """The objects of one path."""

    def __init__(
        self, cluster: Cluster, where: str, query: Sequence[tuple[str, str]], sink: Sink, page: int = PAGE
    ) -> None:
        """`page` is how many objects are listed at once."""
        self._cluster, self._where, self._query, self._sink, self._page = cluster, where, query, sink, page
        self._failures = 0
        self.unreadable = 0
        """objects that were skipped so far"""
        self.heard_at: float | None = None
        """when the API server last said something about these objects, on the loop's clock; None: they are not known"""

    async def follow(self) -> None:
        """Follow the objects for ever."""
        while True:
            try:
                version = await self._list()
                self._failures = 0
                await self._watch(version)
            except ClusterError as error:
                self._fail(error)
            except UNREADABLE as error:
                self._fail(ClusterError(f"{self._where}: an answer of another shape: {said(error)}", 0))
            # All replicas have lost the same API server, and an administrator may have to restore a right.
            pause_s = min(LONGEST_RETRY_S, RETRY_S * 2.0 ** min(max(0, self._failures - 1), 10))
            await asyncio.sleep(pause_s * (1 + random.random()))

    async def _list(self) -> str:
        """Read all objects, and return the version of the list; raise ClusterError."""
        there: set[str] = set()
        version = ""
        async for page in self._cluster.lists(self._where, self._query, self._page):
            version = version or page["metadata"]["resourceVersion"]
            for raw in page["items"] or ():
                there.add(uid_of(raw))
                self._take(raw, is_gone=False)
            await asyncio.sleep(0)
        self._sink.listed(there, version)
        self._hear()
        return version

    async def _watch(self, version: str) -> None:
        """Take in changes from a version on, until that version is too old; raise ClusterError."""
        while True:
            async with aclosing(self._cluster.events(self._where, self._query, version)) as events:
                async for event in events:
                    if event["type"] == "ERROR":
                        log.info("action=follow path=%s outcome=%s", self._where, event["object"].get("reason", ""))
                        return
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._take(event["object"], is_gone=event["type"] == "DELETED")
                    self._hear()
                    await asyncio.sleep(0)  # events that have come in together are no reason to let others wait
            await asyncio.sleep(PAUSE_S)

    def _fail(self, error: ClusterError) -> None:
        log.warning("action=follow path=%s outcome=failed will try again: %s", self._where, error)
        self._failures += 1
        self._sink.failed(error)

    def _take(self, raw: Manifest, is_gone: bool) -> None:
        try:
            self._sink.seen(raw, is_gone)
        except UNREADABLE as error:
            self.unreadable += 1
            log.warning("action=read path=%s name=%s outcome=skipped: %s", self._where, named(raw), said(error))

    def _hear(self) -> None:
        self.heard_at = asyncio.get_running_loop().time()


def uid_of(raw: Any) -> str:
    """Return the uid of an object; empty: it has none that can be read."""
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    return str(metadata.get("uid", "")) if isinstance(metadata, dict) else ""


def named(raw: Any) -> str:
    """Return namespace and name of an object, also of one that cannot be read."""
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    if not isinstance(metadata, dict):
        return "?"
    return printable("/".join(str(metadata[part]) for part in ("namespace", "name") if part in metadata), longest=300)
