"""Keeps the newest known version of every job, child and pod. Not thread-safe; no I/O.

Objects come from watches, from lists, and from the responses to our own writes, in any order; the newest wins. Only
the fields that the operator reads are kept, packed as JSON: a thousand jobs have eight thousand objects, and a
dictionary takes five times its text.
"""

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from rljob_api.errors import UNREADABLE
from rljob_api.foreign_text import said
from rljob_api.reading.depth import shallow
from rljob_operator.children.configmaps import digested
from rljob_operator.identity import GROUP, JOB_LABEL, KIND, Manifest, job_name
from rljob_operator.status.job_rows import JobRow, row_of
from rljob_operator.world.kueue import Workload, job_of_workload, workload_of
from rljob_operator.world.run_claims import RunIndex, Runs, claim_of
from rljob_operator.world.world import Job, Pod, pod_of

log = logging.getLogger(__name__)

Key = str
"""NAMESPACE/NAME of a job"""
MOST_OF_NAMESPACE = 256 * 2**20
"""of the objects of one namespace: a job that runs has 20 kB, so 5,000 have 100 MB. Without a quota its author can
write objects without an end, and all namespaces share the operator's memory [bytes]"""
REMEMBERED = 10_000
"""uids of deleted objects: the response to our own write may arrive after the watch has reported the deletion"""
GONE_PODS = 8
"""of a job, that are kept as they were last: they say which node has lost them"""


class TooManyError(ValueError):
    """A namespace has too many objects, or too large ones."""


class Freshness(Enum):
    """What a version of an object adds to what is known."""

    STALE = auto()
    """nothing: this version, or a newer one, is known"""
    UNCHANGED = auto()
    """it is newer, and the fields that the operator reads are unchanged"""
    CHANGED = auto()
    EDITED = auto()
    """it is a job that its author has changed: its spec, its labels, or that it shall be deleted"""


@dataclass(frozen=True, slots=True)
class Known:
    """The newest known version of an object."""

    kind: str
    version: str
    content: bytes | Pod | Workload
    """JSON of the fields that are read; of pods and Workloads only a few values"""
    edition: tuple[object, ...] = ()
    """of a job: what changes when its author changes it"""

    @property
    def manifest(self) -> Manifest:
        """The object, freshly made."""
        assert isinstance(self.content, bytes)
        found: Manifest = json.loads(self.content)
        found["metadata"]["resourceVersion"] = self.version
        return found


def key_of(raw: Manifest) -> Key:
    """Return the job that an object is, or belongs to: by its owner, or if it has no controller by its label."""
    metadata = raw["metadata"]
    return f"{metadata['namespace']}/{_job_of(raw)}"


def _job_of(raw: Manifest) -> str:
    """Return the name of the job that an object is or belongs to; empty: none."""
    if raw["kind"] == KIND:
        return str(raw["metadata"]["name"])
    return job_of_workload(raw) if raw["kind"] == "Workload" else job_of_child(raw["metadata"])


def job_of_child(metadata: Manifest) -> str:
    """Return the name of the job that an object with this metadata belongs to; empty: none."""
    owner = next((each for each in metadata.get("ownerReferences", []) if each.get("controller")), None)
    if owner is not None and owner["kind"] == KIND and owner["apiVersion"].startswith(f"{GROUP}/"):
        return str(owner["name"])
    labels: dict[str, str] = metadata.get("labels") or {}
    return labels.get(JOB_LABEL, "")


def is_ours(raw: Manifest) -> bool:
    """Return whether an object is a job or belongs to one; there are RayClusters of others."""
    return _job_of(raw) != ""


def version_of(raw: Manifest) -> int:
    """Return the resource version as a number: since Kubernetes 1.35 they may be compared, and etcd's always could."""
    return _number(raw["metadata"].get("resourceVersion", "0"))


class Cache:
    """The newest known version of each object."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns unix seconds."""
        self._clock = clock
        self._objects: dict[Key, dict[str, Known]] = {}
        self._gone_pods: dict[Key, deque[Pod]] = {}
        self._gone: dict[str, int] = {}
        """the version at which an object was gone, by its uid"""
        self._runs = RunIndex()
        self._bytes: dict[str, int] = {}
        """of all objects of a namespace"""
        self._rows: dict[str, JobRow] = {}
        """of each job, by its uid"""

    @property
    def runs(self) -> Runs:
        """The claims of all jobs to run directories; it changes with the cache."""
        return self._runs.runs

    def begins(self, raw: Manifest) -> None:
        """Note that a job begins a run, before the API server has its status: another job must see it at once."""
        self._claim(raw)

    def put(self, raw: Manifest) -> Freshness:
        """Keep an object unless a newer version of it is known, and return what it adds."""
        uid, kind = raw["metadata"]["uid"], raw["kind"]
        if version_of(raw) <= self._gone.get(uid, -1):
            return Freshness.STALE
        # A newer version: its label was removed and put back, so for a watch by label it was gone meanwhile.
        self._gone.pop(uid, None)
        before = self._objects.get(key_of(raw), {}).get(uid)
        if before is not None and _number(before.version) >= version_of(raw):
            return Freshness.STALE
        content = _content(raw)
        self._make_room(raw["metadata"]["namespace"], before, size_of(content))
        if kind == KIND:
            self._claim(raw)
            self._rows[uid] = row_of(raw)
        version = str(raw["metadata"].get("resourceVersion", "0"))
        known = self._objects.setdefault(key_of(raw), {})[uid] = Known(kind, version, content, _edition(raw))
        if before is None:
            return Freshness.CHANGED
        if before.edition != known.edition:
            return Freshness.EDITED
        return Freshness.UNCHANGED if before.content == content else Freshness.CHANGED

    def _make_room(self, namespace: str, before: Known | None, size: int) -> None:
        """Count an object; raise TooManyError if its namespace then has more than it may."""
        more = size - (size_of(before.content) if before is not None else 0)
        total = self._bytes.get(namespace, 0) + more
        if more > 0 and total > MOST_OF_NAMESPACE:
            raise TooManyError(f"the objects of namespace {namespace} have more than {MOST_OF_NAMESPACE} bytes")
        self._bytes[namespace] = total

    def _free(self, key: Key, known: Known) -> None:
        namespace = key.partition("/")[0]
        self._bytes[namespace] -= size_of(known.content)
        if not self._bytes[namespace]:
            del self._bytes[namespace]

    def remove(self, raw: Manifest) -> None:
        """Forget an object."""
        self._remove(key_of(raw), raw["metadata"]["uid"], version_of(raw))

    def remove_missing(
        self, kind: str, there: Iterable[str], version: str, namespace: str | None = None
    ) -> Mapping[str, Key]:
        """Forget the objects of a kind that are missing in a list of this version; return their jobs by their uids.

        `there` are the uids of those in the list, which is of one namespace or of all.
        """
        listed, newest = set(there), _number(version)
        gone = [
            (key, uid)
            for key, objects in self._objects.items()
            if namespace is None or key.startswith(f"{namespace}/")
            for uid, known in objects.items()
            if known.kind == kind and uid not in listed and _number(known.version) <= newest
        ]
        for key, uid in gone:
            self._remove(key, uid, newest)
        return {uid: key for key, uid in gone}

    def forget(self, namespace: str) -> tuple[Key, ...]:
        """Forget all objects of a namespace, as if they had never been seen; return their jobs."""
        keys = tuple(key for key in self._objects if key.startswith(f"{namespace}/"))
        for key in keys:
            self._gone_pods.pop(key, None)
            for uid, known in self._objects.pop(key).items():
                self._free(key, known)
                self._runs.remove(uid)
                self._rows.pop(uid, None)
        return keys

    def jobs(self) -> tuple[Key, ...]:
        """Return every job that exists, or of which objects are left."""
        return tuple(self._objects)

    def rows(self) -> tuple[JobRow, ...]:
        """Return what metrics show of all jobs; for any thread."""
        return tuple(self._rows.values())

    def job(self, key: Key) -> Manifest | None:
        """Return the RLJob itself."""
        return next((known.manifest for known in self._of(key) if known.kind == KIND), None)

    def children(self, job: Job) -> tuple[Manifest, ...]:
        """Return the children that this very job owns: not those of a deleted one of the same name."""
        found = (known.manifest for known in self._of(job.key) if known.kind not in (KIND, "Pod", "Workload"))
        owned = (raw for raw in found if _is_owned(raw, job))
        return tuple(sorted(owned, key=lambda raw: (raw["kind"], raw["metadata"]["name"])))

    def head_ip(self, key: Key, children: str) -> str | None:
        """Return the IP address of a job's head; None: it has none now. `children` is what `job_name` calls them."""
        pods = (known.content for known in self._of(key))
        heads = (pod for pod in pods if isinstance(pod, Pod) and pod.is_head and pod.cluster.startswith(f"{children}-"))
        newest = max(heads, key=lambda pod: (not pod.is_deleting, pod.created), default=None)
        return newest.ip if newest is not None else None

    def has_pods(self, key: Key) -> bool:
        """Return whether there are pods of this job, or of an older one of its name."""
        return any(known.kind == "Pod" for known in self._of(key))

    def pods(self, job: Job) -> tuple[Pod, ...]:
        """Return the pods of this very job's RayClusters."""
        mine = job_name(job.name, job.uid) + "-"
        pods = (known.content for known in self._of(job.key))
        found = (pod for pod in pods if isinstance(pod, Pod) and pod.cluster.startswith(mine))
        return tuple(sorted(found, key=lambda pod: pod.name))

    def gone_pods(self, job: Job) -> tuple[Pod, ...]:
        """Return the last pods of this very job's RayClusters that are gone, as they were last."""
        mine = job_name(job.name, job.uid) + "-"
        return tuple(pod for pod in self._gone_pods.get(job.key, ()) if pod.cluster.startswith(mine))

    def workloads(self, job: Job) -> tuple[Workload, ...]:
        """Return what Kueue says about this very job's RayClusters."""
        mine = job_name(job.name, job.uid) + "-"
        found = (known.content for known in self._of(job.key))
        return tuple(each for each in found if isinstance(each, Workload) and each.cluster.startswith(mine))

    def tool_pods(self, job: Job) -> tuple[Pod, ...]:
        """Return the pods that run the tools of this very job."""
        mine = job_name(job.name, job.uid) + "-"
        pods = (known.content for known in self._of(job.key))
        found = (pod for pod in pods if isinstance(pod, Pod) and pod.tools_of.startswith(mine))
        return tuple(sorted(found, key=lambda pod: pod.name))

    def _of(self, key: Key) -> Iterator[Known]:
        return iter(self._objects.get(key, {}).values())

    def _claim(self, raw: Manifest) -> None:
        try:
            claim = claim_of(raw)
        except UNREADABLE as error:
            log.warning("action=claim name=%s outcome=unreadable: %s", key_of(raw), said(error))
            claim = None
        if claim is not None:
            self._runs.put(claim)
        else:
            self._runs.remove(raw["metadata"]["uid"])

    def _remove(self, key: Key, uid: str, version: int) -> None:
        self._runs.remove(uid)
        self._rows.pop(uid, None)
        self._gone[uid] = version
        if len(self._gone) > REMEMBERED:
            del self._gone[next(iter(self._gone))]
        objects = self._objects.get(key, {})
        known = objects.pop(uid, None)
        if known is not None:
            self._free(key, known)
            self._remember(key, known.content)
        if not objects:
            self._objects.pop(key, None)
            self._gone_pods.pop(key, None)

    def _remember(self, key: Key, content: bytes | Pod | Workload) -> None:
        """Keep a pod that is gone, if it had a node."""
        if isinstance(content, Pod) and content.node is not None:
            at = content.deleted_at if content.deleted_at is not None else self._clock()
            gone = replace(content, is_deleting=True, deleted_at=at, trouble=(), stage=None)
            self._gone_pods.setdefault(key, deque(maxlen=GONE_PODS)).append(gone)


def size_of(content: bytes | Pod | Workload) -> int:
    """Return about how much memory the content of an object takes [bytes]."""
    match content:
        case bytes():
            return len(content)
        case Pod():
            return SMALL + sum(map(len, content.trouble)) + len(content.stage.text if content.stage else "")
        case Workload():
            return SMALL + len(content.message) + len(content.eviction)


SMALL = 1000
"""of a pod or Workload without its texts [bytes]"""


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0


def _edition(raw: Manifest) -> tuple[object, ...]:
    metadata = raw["metadata"]
    parts = ("generation", "deletionTimestamp", "labels")
    return tuple(metadata.get(part) for part in parts) if raw["kind"] == KIND else ()


def _is_owned(raw: Manifest, job: Job) -> bool:
    """Return whether a child is this job's: it owns it, or its owner was removed and the names agree."""
    owners = raw["metadata"].get("ownerReferences", [])
    if any(owner["uid"] == job.uid for owner in owners):
        return True
    name, mine = raw["metadata"]["name"], job_name(job.name, job.uid)
    return not owners and (name == mine or name.startswith(f"{mine}-"))


def _content(raw: Manifest) -> bytes | Pod | Workload:
    match raw["kind"]:
        case "Pod":
            return pod_of(raw)
        case "Workload":
            return workload_of(raw)
        case _:
            return json.dumps(shallow(_read(raw))).encode()


ONLY_METADATA = ("Sandbox",)
"""kinds of which nothing else is read: an annotation says what each was made from, and a job can have hundreds"""
OF_ALL = ("name", "namespace", "uid", "generation", "labels", "ownerReferences", "deletionTimestamp")


def _read(raw: Manifest) -> Manifest:
    """Return the fields that are read: a job without annotations, a child with only the conditions of its status."""
    is_job = raw["kind"] == KIND
    kept = (*OF_ALL, "creationTimestamp") if is_job else (*OF_ALL, "annotations")
    metadata = {key: raw["metadata"][key] for key in kept if key in raw["metadata"]}
    if is_job:
        return {**raw, "metadata": metadata}
    if raw["kind"] in ONLY_METADATA:
        return {"apiVersion": raw["apiVersion"], "kind": raw["kind"], "metadata": metadata}
    if raw["kind"] == "ConfigMap":
        raw = digested(raw)
    conditions = raw.get("status", {}).get("conditions")
    status = {"status": {"conditions": conditions}} if conditions else {}
    return {**{key: value for key, value in raw.items() if key != "status"}, "metadata": metadata, **status}
