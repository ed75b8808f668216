"""Records of run directories, with an API server that keeps them and a sweeper that looks at them."""

import asyncio
from typing import Any

from rljob_operator.cache.cache import Cache
from rljob_operator.cluster.cluster import ConflictError
from rljob_operator.execution.keys import Keys
from rljob_operator.identity import Manifest
from rljob_operator.job import retention
from rljob_operator.job.retention import RunRecord
from rljob_operator.plan import Target
from rljob_operator.sweeper import OF_THIS_PROCESS, Sweeper
from rljob_operator.world.world import Defaults, Storage
from support.operator.operator_world import raw_job

STORAGE = Storage({"persistentVolumeClaim": {"claimName": "runs"}})


DEFAULTS = Defaults(image="trainer:1", storage=STORAGE, ttl_after_deletion_s=3600)


NOW = 1_800_000_000.0


RECORD = RunRecord("ml", "sums", "/rljob/ml/sums", retention._text(STORAGE.source), "/rljob", 3600)


def begun(name: str = "sums", attempt: int = 1, **sections: Any) -> Manifest:
    """Return a job in the operator's volume that has had attempts."""
    volume = {"source": dict(STORAGE.source), "path": "/rljob"}
    status = {"attempt": attempt, "directory": f"/rljob/ml/{name}", "resolved": {"volume": volume}}
    raw = raw_job(name, **sections)
    return {**raw, "metadata": {**raw["metadata"], "uid": name, "resourceVersion": "1"}, "status": status}


def sealed(record: RunRecord, keys: Keys = OF_THIS_PROCESS) -> Manifest:
    """Return the ConfigMap that a sweeper with these keys writes."""
    raw = retention.manifest(record)
    data = {**raw["data"], "seal": keys.seal(record.sealed_text)}
    return {**raw, "metadata": {**raw["metadata"], "uid": "u"}, "data": data}


class Api:
    """Records, Jobs and RLJobs as an API server keeps them."""

    def __init__(self, *rljobs: Manifest) -> None:
        self.rljobs = list(rljobs)
        self.objects: dict[tuple[str, str], Manifest] = {}

    async def pages(self, kind: str, namespaces: Any, label: str | None = None) -> Any:
        objects = self.rljobs if kind == "RLJob" else [v for (each, _), v in self.objects.items() if each == kind]
        yield type("Page", (), {"objects": tuple(objects)})

    async def read(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return self.objects.get((kind, name))

    async def apply(self, wanted: Manifest, force: bool) -> Manifest:
        return self._put(wanted)

    async def create(self, wanted: Manifest) -> Manifest:
        if (wanted["kind"], wanted["metadata"]["name"]) in self.objects:
            raise ConflictError("there", 409)
        return self._put(wanted)

    async def delete(self, target: Target) -> None:
        self.objects.pop((target.kind, target.name), None)

    def _put(self, raw: Manifest) -> Manifest:
        name = raw["metadata"]["name"]
        self.objects[raw["kind"], name] = {**raw, "metadata": {**raw["metadata"], "uid": name}}
        return raw

    def of(self, kind: str) -> list[Manifest]:
        return [raw for (each, _), raw in self.objects.items() if each == kind]


class Place:
    """A sweeper with its surroundings; `at` is the time [unix s]."""

    def __init__(self, *rljobs: Manifest, defaults: Defaults = DEFAULTS) -> None:
        self.at = NOW
        self.api: Any = Api(*rljobs)
        self.cache = Cache()
        for raw in rljobs:
            self.cache.put(raw)
        self.sweeper = Sweeper(self.api, self.cache, (), defaults, lambda: self.at)

    def sweep(self, times: int = 1) -> None:
        for _ in range(times):
            asyncio.run(self.sweeper.sweep())

    def delete(self, raw: Manifest) -> None:
        self.api.rljobs.remove(raw)
        self.cache.remove(raw)
