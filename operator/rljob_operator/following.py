"""Follows the objects of one path: a list in small pages, then a watch. All I/O is `Cluster`'s.

    list ─► put, remove what is missing ─► watch ─► put, remove ─► (it ends) ─► watch again, or list again

Nothing here holds up the event loop for longer than one page, or one event, takes to read.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing

from rljob_operator.cluster import Cluster, ClusterError
from rljob_operator.identity import Manifest

log = logging.getLogger(__name__)

PAGE = 25
"""objects of a page: a few milliseconds to read, where 500 take a tenth of a second"""
RETRY_S = 2.0
"""after a request that failed [s]"""
PAUSE_S = 0.5
"""between two watches: a proxy may end each at once [s]"""


class Followed:
    """The objects of one path."""

    def __init__(
        self,
        cluster: Cluster,
        where: str,
        query: Sequence[tuple[str, str]],
        put: Callable[[Manifest], None],
        remove: Callable[[str], None],
    ) -> None:
        """`put` takes an object that is new or has changed, `remove` the uid of one that is gone."""
        self._cluster, self._where, self._query = cluster, where, query
        self._put, self._remove = put, remove
        self._there: set[str] = set()
        self.heard_at: float | None = None
        """when the API server last said something about these objects, on the loop's clock; None: they are not known"""

    async def follow(self) -> None:
        """Follow the objects for ever."""
        while True:
            try:
                await self._watch(await self._list())
            except ClusterError as error:
                log.warning("action=follow path=%s outcome=failed will try again: %s", self._where, error)
            await asyncio.sleep(RETRY_S * (1 + random.random()))  # all replicas have lost the same API server

    async def _list(self) -> str:
        """Read all objects, and return the version of the list; raise ClusterError."""
        there: set[str] = set()
        version = ""
        async for page in self._cluster.lists(self._where, self._query, PAGE):
            version = version or page["metadata"]["resourceVersion"]
            for raw in page["items"]:
                there.add(raw["metadata"]["uid"])
                self._put(raw)
        for uid in self._there - there:
            self._remove(uid)
        self._there = there
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
                    self._take(event["type"], event["object"])
                    self._hear()
                    await asyncio.sleep(0)  # events that have come in together are no reason to let others wait
            await asyncio.sleep(PAUSE_S)

    def _take(self, kind: str, raw: Manifest) -> None:
        if kind == "BOOKMARK":
            return
        uid = raw["metadata"]["uid"]
        if kind == "DELETED":
            self._there.discard(uid)
            self._remove(uid)
        else:
            self._there.add(uid)
            self._put(raw)

    def _hear(self) -> None:
        self.heard_at = asyncio.get_running_loop().time()
