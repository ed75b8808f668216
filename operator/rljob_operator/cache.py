"""What the watches have shown: the newest version of every job, child and pod. Not thread-safe; no I/O.

Objects come from the watches, from lists, and from the answers to our own writes, in any order; the newest wins. They
are kept without what nobody here reads, and packed: a thousand jobs have eight thousand objects, and as dictionaries
each would take five times its text.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from rljob_operator.identity import JOB_LABEL, KIND, Manifest, job_name
from rljob_operator.world import Job, Pod, pod_of

Key = str
"""NAMESPACE/NAME of a job"""
REMEMBERED = 10_000
"""uids of objects that are gone: the answer to our own write of one may come after the watch has told of its end"""


class Seen(Enum):
    """What an object tells."""

    OLD = auto()
    """nothing: it is known in this version, or in a newer one"""
    SAME = auto()
    """it is newer, and all that matters here is as it was"""
    NEWS = auto()


@dataclass(frozen=True, slots=True)
class Known:
    """The newest known version of an object."""

    kind: str
    version: str
    content: bytes | Pod
    """JSON of what is read of it; of pods there are many, and little is read"""

    @property
    def manifest(self) -> Manifest:
        """The object, freshly made."""
        assert isinstance(self.content, bytes)
        found: Manifest = json.loads(self.content)
        found["metadata"]["resourceVersion"] = self.version
        return found


def key_of(raw: Manifest) -> Key:
    """Return the job that an object is, or belongs to by its label."""
    metadata = raw["metadata"]
    name = metadata["name"] if raw["kind"] == KIND else metadata.get("labels", {}).get(JOB_LABEL, "")
    return f"{metadata['namespace']}/{name}"


def version_of(raw: Manifest) -> int:
    """Return the resource version as a number: since Kubernetes 1.35 they may be compared, and etcd's always could."""
    return _number(raw["metadata"].get("resourceVersion", "0"))


class Cache:
    """The newest known version of each object."""

    def __init__(self) -> None:
        self._objects: dict[Key, dict[str, Known]] = {}
        self._gone: dict[str, None] = {}

    def put(self, raw: Manifest) -> Seen:
        """Keep an object unless a newer version of it is known, and return what it tells."""
        uid, kind = raw["metadata"]["uid"], raw["kind"]
        if uid in self._gone:
            return Seen.OLD
        objects = self._objects.setdefault(key_of(raw), {})
        before = objects.get(uid)
        if before is not None and _number(before.version) >= version_of(raw):
            return Seen.OLD
        content = pod_of(raw) if kind == "Pod" else json.dumps(_read(raw)).encode()
        objects[uid] = Known(kind, raw["metadata"].get("resourceVersion", "0"), content)
        return Seen.SAME if before is not None and before.content == content else Seen.NEWS

    def remove(self, raw: Manifest) -> None:
        """Forget an object."""
        self._remove(key_of(raw), raw["metadata"]["uid"])

    def remove_missing(self, kind: str, there: Iterable[str], version: str) -> tuple[Key, ...]:
        """Forget the objects of a kind that a list of this version shows to be gone; return their jobs.

        `there` are the uids of those that it has shown.
        """
        listed, newest = set(there), _number(version)
        gone = [
            (key, uid)
            for key, objects in self._objects.items()
            for uid, known in objects.items()
            if known.kind == kind and uid not in listed and _number(known.version) <= newest
        ]
        for key, uid in gone:
            self._remove(key, uid)
        return tuple(key for key, _ in gone)

    def jobs(self) -> tuple[Key, ...]:
        """Return every job that there is, or of which something is left."""
        return tuple(self._objects)

    def job(self, key: Key) -> Manifest | None:
        """Return the RLJob itself."""
        return next((known.manifest for known in self._of(key) if known.kind == KIND), None)

    def children(self, job: Job) -> tuple[Manifest, ...]:
        """Return the children that this very job owns: not those of a deleted one of the same name."""
        found = (known.manifest for known in self._of(job.key) if known.kind not in (KIND, "Pod"))
        owned = (raw for raw in found if _is_owned(raw, job.uid))
        return tuple(sorted(owned, key=lambda raw: (raw["kind"], raw["metadata"]["name"])))

    def pods(self, job: Job) -> tuple[Pod, ...]:
        """Return the pods of this very job's RayClusters."""
        mine = job_name(job.name, job.uid) + "-"
        pods = (known.content for known in self._of(job.key))
        found = (pod for pod in pods if isinstance(pod, Pod) and pod.cluster.startswith(mine))
        return tuple(sorted(found, key=lambda pod: pod.name))

    def _of(self, key: Key) -> Iterator[Known]:
        return iter(self._objects.get(key, {}).values())

    def _remove(self, key: Key, uid: str) -> None:
        self._gone[uid] = None
        if len(self._gone) > REMEMBERED:
            del self._gone[next(iter(self._gone))]
        objects = self._objects.get(key, {})
        objects.pop(uid, None)
        if not objects:
            self._objects.pop(key, None)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0


def _is_owned(raw: Manifest, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in raw["metadata"].get("ownerReferences", []))


OF_ALL = ("name", "namespace", "uid", "generation", "labels", "ownerReferences", "deletionTimestamp")


def _read(raw: Manifest) -> Manifest:
    """Return what is read of an object: of a job not its annotations, of a child's status its conditions alone."""
    is_job = raw["kind"] == KIND
    kept = OF_ALL if is_job else (*OF_ALL, "annotations")
    metadata = {key: raw["metadata"][key] for key in kept if key in raw["metadata"]}
    if is_job:
        return {**raw, "metadata": metadata}
    conditions = raw.get("status", {}).get("conditions")
    status = {"status": {"conditions": conditions}} if conditions else {}
    return {**{key: value for key, value in raw.items() if key != "status"}, "metadata": metadata, **status}
