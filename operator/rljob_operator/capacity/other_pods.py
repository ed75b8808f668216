"""What pods outside the queue use of quotas and nodes, kept up to date object by object. Pure, but for its own
bookkeeping.

A change costs the same in a cluster of any size. Pods of jobs in the queue do not count: it knows better what these
hold. When a job leaves the queue, or comes into it, its pods begin or cease to count.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rljob_operator.capacity.demand import Pods, alike
from rljob_operator.capacity.inventory import Inventory, Kind
from rljob_operator.capacity.packing import Node
from rljob_operator.capacity.quotas import Quota, counts, quota_of
from rljob_operator.capacity.snapshot import ENDED, NOT_TERMINATING, Snapshot, requests_of
from rljob_operator.identity import Manifest
from rljob_operator.job.pod_roles import HEAD

MOST_SIZES = 10_000
"""sizes of pods that are kept to be shared: a cluster has many pods, and few kinds of them"""


@dataclass(frozen=True, slots=True)
class _Size:
    """What quotas and nodes count of a pod; pods that are alike share it."""

    one: Pods
    requests: dict[str, int]
    ends: bool
    """whether it has a deadline"""


@dataclass(frozen=True, slots=True)
class _Pod:
    job: str
    namespace: str
    node: str
    size: _Size


class OtherPods:
    """Pods by uid, and quotas, limit ranges and nodes."""

    def __init__(self, coming: Sequence[Node] | None) -> None:
        """`coming` are the nodes that an autoscaler can bring; None: not known."""
        self._inventory = Inventory(coming)
        self._pods: dict[str, _Pod] = {}
        self._of_job: dict[str, set[str]] = {}
        self._counted: dict[str, set[str]] = {}
        """uids of the pods that count, by namespace"""
        self._left_out: set[str] = set()
        """jobs whose pods do not count"""
        self._quotas: dict[str, dict[str, Quota]] = {}
        """by namespace and uid, as far as others use them"""
        self._places: dict[str, str] = {}
        self._sizes: dict[str, _Size] = {}

    def put(self, kind: Kind, raw: Manifest) -> None:
        """Keep the newest version of a limit range or a node."""
        self._inventory.put(kind, raw)

    def remove(self, kind: Kind, uid: str) -> None:
        """Forget a limit range or a node."""
        self._inventory.remove(kind, uid)

    def put_quota(self, raw: Manifest) -> None:
        """Keep a quota; what the API server counts of it is left out."""
        uid, place = raw["metadata"]["uid"], raw["metadata"]["namespace"]
        quota, before = replace(quota_of(raw), used={}), self._quotas.get(place, {}).get(uid)
        if before is not None and (before.hard, before.selector) == (quota.hard, quota.selector):
            return  # the API server only counts anew
        for pod in map(self._pods.__getitem__, self._counted.get(place, ())):
            quota = _used(quota, pod.size, 1)
        self._places[uid] = place
        self._quotas.setdefault(place, {})[uid] = quota

    def remove_quota(self, uid: str) -> None:
        place = self._places.pop(uid, None)
        if place is not None:
            del self._quotas[place][uid]
            if not self._quotas[place]:
                del self._quotas[place]

    def put_pod(self, raw: Manifest, job: str) -> None:
        """Keep a pod; `job` is the key of the RLJob that it belongs to, empty: of none."""
        uid, spec, namespace = raw["metadata"]["uid"], raw["spec"], raw["metadata"]["namespace"]
        if raw.get("status", {}).get("phase") in ENDED:
            self.remove_pod(uid)
            return
        pod = _Pod(job, namespace, spec.get("nodeName") or "", self._size(spec))
        if self._pods.get(uid) == pod:
            return
        self.remove_pod(uid)
        self._pods[uid] = pod
        if job:
            self._of_job.setdefault(job, set()).add(uid)
        if job not in self._left_out:
            self._count(uid, pod)

    def remove_pod(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        self._leave_out(uid, pod)
        if pod.job:
            self._of_job[pod.job].discard(uid)
            if not self._of_job[pod.job]:
                del self._of_job[pod.job]
                self._left_out.discard(pod.job)

    def seen(self, is_queued: Callable[[str], bool], with_nodes: bool) -> Snapshot:
        """Return what others leave; pods of jobs for which `is_queued` is true do not count."""
        for job, uids in self._of_job.items():
            if is_queued(job) == (job in self._left_out):
                continue
            (self._left_out.discard if job in self._left_out else self._left_out.add)(job)
            for uid in uids:
                (self._leave_out if job in self._left_out else self._count)(uid, self._pods[uid])
        found = self._inventory.snapshot
        quotas = {place: tuple(each.values()) for place, each in self._quotas.items()}
        return Snapshot(quotas, found.limits, found.nodes if with_nodes else None, found.coming)

    def _count(self, uid: str, pod: _Pod) -> None:
        counted = self._counted.setdefault(pod.namespace, set())
        if uid in counted:
            return
        counted.add(uid)
        self._change(pod, 1)
        if pod.node:
            self._inventory.place_pod(uid, pod.node, pod.size.requests)

    def _leave_out(self, uid: str, pod: _Pod) -> None:
        counted = self._counted.get(pod.namespace, set())
        if uid not in counted:
            return
        counted.discard(uid)
        if not counted:
            del self._counted[pod.namespace]
        self._change(pod, -1)
        self._inventory.remove(Kind.PODS, uid)

    def _change(self, pod: _Pod, sign: int) -> None:
        quotas = self._quotas.get(pod.namespace, {})
        for uid, quota in quotas.items():
            quotas[uid] = _used(quota, pod.size, sign)

    def _size(self, spec: Manifest) -> _Size:
        shape = repr(
            (
                [each.get("resources") for each in spec.get("containers", ())],
                [(each.get("resources"), each.get("restartPolicy")) for each in spec.get("initContainers", ())],
                spec.get("overhead"),
                spec.get("priorityClassName"),
                "activeDeadlineSeconds" in spec,
            )
        )
        if shape not in self._sizes:
            if len(self._sizes) >= MOST_SIZES:
                self._sizes.clear()
            one = alike(HEAD, 1, {**spec, "nodeSelector": {}, "tolerations": ()})  # KubeRay adds nothing to a head
            self._sizes[shape] = _Size(one, requests_of(spec), "activeDeadlineSeconds" in spec)
        return self._sizes[shape]


def _used(quota: Quota, size: _Size, sign: int) -> Quota:
    """Return a quota that one more pod, or one less, takes a part of."""
    if size.ends and any(each["scopeName"] == NOT_TERMINATING for each in quota.selector):
        return quota
    taken = counts(quota, [size.one])
    return replace(quota, used={**quota.used, **{k: quota.used.get(k, 0) + sign * n for k, n in taken.items()}})
