"""What the watches have shown: the newest version of every job, child and pod. Not thread-safe; no I/O.

Objects come from the watches, from lists, and from the answers to our own writes, in any order; the newest wins.
"""

from collections.abc import Iterable, Iterator

from rljob_operator.identity import JOB_LABEL, KIND, Manifest, job_name
from rljob_operator.world import Job, Pod, pod_of

Key = str
"""NAMESPACE/NAME of a job"""


def key_of(raw: Manifest) -> Key:
    """Return the job that an object is, or belongs to by its label."""
    metadata = raw["metadata"]
    name = metadata["name"] if raw["kind"] == KIND else metadata.get("labels", {}).get(JOB_LABEL, "")
    return f"{metadata['namespace']}/{name}"


def version_of(raw: Manifest) -> int:
    """Return the resource version as a number: since Kubernetes 1.35 they may be compared, and etcd's always could."""
    text = raw["metadata"].get("resourceVersion", "0")
    return int(text) if text.isdecimal() else 0


class Cache:
    """The newest known version of each object."""

    def __init__(self) -> None:
        self._objects: dict[Key, dict[str, Manifest]] = {}

    def put(self, raw: Manifest) -> bool:
        """Keep an object, and return True, unless a newer version of it is known."""
        objects = self._objects.setdefault(key_of(raw), {})
        uid = raw["metadata"]["uid"]
        if uid in objects and version_of(objects[uid]) >= version_of(raw):
            return False
        objects[uid] = _trimmed(raw)
        return True

    def remove(self, raw: Manifest) -> None:
        """Forget an object."""
        objects = self._objects.get(key_of(raw), {})
        objects.pop(raw["metadata"]["uid"], None)
        if not objects:
            self._objects.pop(key_of(raw), None)

    def jobs(self) -> tuple[Key, ...]:
        """Return every job that there is, or of which something is left."""
        return tuple(self._objects)

    def job(self, key: Key) -> Manifest | None:
        """Return the RLJob itself."""
        return next((raw for raw in self._of(key) if raw["kind"] == KIND), None)

    def children(self, job: Job) -> tuple[Manifest, ...]:
        """Return the children that this very job owns: not those of a deleted one of the same name."""
        owned = (raw for raw in self._of(job.key) if raw["kind"] not in (KIND, "Pod") and _is_owned(raw, job.uid))
        return tuple(sorted(owned, key=lambda raw: (raw["kind"], raw["metadata"]["name"])))

    def pods(self, job: Job) -> tuple[Pod, ...]:
        """Return the pods of this very job's RayClusters."""
        mine = job_name(job.name, job.uid) + "-"
        pods = (pod_of(raw) for raw in self._of(job.key) if raw["kind"] == "Pod")
        return tuple(sorted((pod for pod in pods if pod.cluster.startswith(mine)), key=lambda pod: pod.name))

    def missing_from(self, kind: str, listed: Iterable[Manifest], version: int) -> tuple[Manifest, ...]:
        """Return the objects of a kind that a list of this version shows to be gone."""
        there = {raw["metadata"]["uid"] for raw in listed}
        known = (raw for objects in self._objects.values() for raw in objects.values() if raw["kind"] == kind)
        return tuple(raw for raw in known if raw["metadata"]["uid"] not in there and version_of(raw) <= version)

    def _of(self, key: Key) -> Iterator[Manifest]:
        return iter(self._objects.get(key, {}).values())


def _is_owned(raw: Manifest, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in raw["metadata"].get("ownerReferences", []))


def _trimmed(raw: Manifest) -> Manifest:
    """Return the object without what nobody here reads: a thousand jobs have many pods."""
    kept = ("name", "namespace", "uid", "resourceVersion", "generation", "labels", "annotations", "ownerReferences")
    metadata = {key: raw["metadata"][key] for key in (*kept, "deletionTimestamp") if key in raw["metadata"]}
    rest = {
        key: value for key, value in raw.items() if key != "metadata" and not (raw["kind"] == "Pod" and key == "spec")
    }
    return {**rest, "metadata": metadata}
