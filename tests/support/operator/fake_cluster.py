"""What `Cluster` promises the reconciler, without an API server: for tests of the reconciler's own decisions only.

Objects are kept with a resource version that every write moves. A child of a kind in `refusals` is refused.
"""

import base64
import itertools
from typing import Any

from rljob_api.status import Status
from rljob_operator.cluster.cluster import ClusterError, ConflictError
from rljob_operator.identity import Manifest
from rljob_operator.plan import Follow, Orders, Target
from rljob_operator.status.events import Event
from rljob_operator.world.world import Driver, Job


class FakeCluster:
    """Takes all writes, in order."""

    def __init__(self, raw: Manifest) -> None:
        self.raw = raw
        self.refusals: dict[str, ClusterError] = {}
        self.secret: Manifest | None = None
        """the newest"""
        self.secret_reads = 0
        self.may_not_read = False
        self.applied: list[tuple[str, bool]] = []
        """kind, and whether our fields win"""
        self.deleted: list[Target] = []
        self.events: list[Event] = []
        self._versions = itertools.count(1)

    async def write_status(self, job: Job, status: Status) -> Manifest:
        written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.raw = self._versioned({**self.raw, "status": written})
        return self.raw

    async def apply(self, wanted: Manifest, force: bool) -> Manifest:
        self.applied.append((wanted["kind"], force))
        if wanted["kind"] in self.refusals:
            raise self.refusals[wanted["kind"]]
        return self._versioned({**wanted, "metadata": {**wanted["metadata"], "uid": wanted["kind"]}})

    async def delete(self, target: Target) -> None:
        self.deleted.append(target)
        if target.kind == "Secret" and self._has_secret(target.name):
            self.secret = None

    async def read_secret(self, namespace: str, name: str) -> Manifest | None:
        self.secret_reads += 1
        if self.may_not_read:
            raise ClusterError(f"GET secrets/{name}: 403 Forbidden", 403)
        return self.secret if self._has_secret(name) else None

    async def create_secret(self, wanted: Manifest) -> Manifest:
        if self._has_secret(wanted["metadata"]["name"]):
            raise ConflictError("it is there already", 409)
        data = {key: base64.b64encode(each.encode()).decode() for key, each in wanted["stringData"].items()}
        self.secret = {**wanted, "data": data}
        return self.secret

    async def record(self, job: Job, event: Event) -> None:
        self.events.append(event)

    def _has_secret(self, name: str) -> bool:
        return self.secret is not None and self.secret["metadata"]["name"] == name

    def _versioned(self, raw: Manifest) -> Manifest:
        return {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(next(self._versions))}}


class FakeDrivers:
    """Knows what the test says of the driver, and keeps what it is asked for."""

    def __init__(self) -> None:
        self.known: Driver | None = None
        self.followed = 0
        self.follows: list[tuple[Follow | None, str]] = []
        """each with the token"""
        self.orders: list[Orders] = []

    def driver(self, key: str) -> Driver | None:
        return self.known

    async def follow(self, key: str, wanted: Follow | None, token: str) -> None:
        self.follows.append((wanted, token))

    def give(self, key: str, orders: Orders) -> None:
        self.orders.append(orders)


def pod(name: str, group: str, is_head: bool = False, **status: Any) -> Manifest:
    """Return a ready pod of the usual job, as the API server shows it."""
    labels = {
        "rljob.dev/job": "sums",
        "ray.io/cluster": "sums-7f3a1-1",
        "ray.io/node-type": "head" if is_head else "worker",
        "ray.io/group": group,
    }
    metadata = {"name": name, "namespace": "ml", "uid": name, "resourceVersion": "1", "labels": labels}
    ready = {"conditions": [{"type": "Ready", "status": "True"}], **status}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": ready}
