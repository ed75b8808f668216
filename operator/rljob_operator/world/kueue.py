"""What Kueue and the operator agree on. Pure.

    RayCluster with the queue's label ─► Kueue suspends it, and makes a Workload ─► quota ─► Kueue starts it

While a job waits, and when it is evicted, its RayCluster is suspended. Kueue owns `spec.suspend` and what it adds to
pod templates; the operator owns all other fields.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rljob_api.errors import UNREADABLE
from rljob_operator.identity import Manifest
from rljob_operator.world.silent_nodes import is_bound

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
FIELDS = (("queue", QUEUE_LABEL), ("queuePriorityClass", PRIORITY_LABEL))
"""fields of `spec.scheduling` and the labels that stand for them"""
CLUSTER_NAME = re.compile(r"(?P<job>[a-z]([-a-z0-9]*[a-z0-9])?)-[0-9a-f]{5}-\d+")
"""of a RayCluster that an operator has named"""
ADDED_MAPPINGS = ("metadata.labels", "metadata.annotations", "spec.nodeSelector")
ADDED_LISTS = ("spec.tolerations", "spec.schedulingGates")
"""parts of a pod template that Kueue adds to"""
UNSEEN = "Kueue has not looked at the job yet"


@dataclass(frozen=True, slots=True)
class Workload:
    """What Kueue says about one RayCluster."""

    cluster: str
    """name of the RayCluster"""
    reserved: bool = False
    """whether quota is reserved"""
    reason: str = "Pending"
    """of the condition that explains the state, in Kueue's own words"""
    message: str = UNSEEN
    since: float | None = None
    """since when it is in this state [unix s]"""
    admitted_at: float | None = None
    """when Kueue let its pods start [unix s]; None: it does not let them"""
    eviction: str = ""
    """why it was evicted; empty: it was not, since it was admitted last"""
    queue: str = ""
    """the LocalQueue that it names; empty: none, so Kueue never admits it"""

    @property
    def sentence(self) -> str:
        """What the job waits for."""
        return f"{self.eviction}; {self.message}" if self.eviction and self.eviction != self.message else self.message


def with_labels(spec: Any, labels: Mapping[str, str]) -> Any:
    """Return a spec with the queue and priority class that the labels of its RLJob name; a field comes first."""
    named = {field: labels[label] for field, label in FIELDS if label in labels}
    if not named or not isinstance(spec, dict) or not isinstance(spec.get("scheduling", {}), dict):
        return spec
    return {**spec, "scheduling": {**named, **spec.get("scheduling", {})}}


def kept(wanted: Manifest, seen: Manifest) -> Manifest:
    """Return the RayCluster that we want, with what others have added to the pod templates of the one that is seen.

    The list of worker groups has one owner: applying it without these additions would remove them. One that a
    user has given another shape gets our fields alone.
    """
    try:
        return _with_those_of(wanted, seen)
    except UNREADABLE:
        return wanted


def _with_those_of(wanted: Manifest, seen: Manifest) -> Manifest:
    spec, there = wanted["spec"], seen["spec"]
    templates = {group["groupName"]: group["template"] for group in there["workerGroupSpecs"]}
    groups = [
        {**group, "template": _with_additions(group["template"], templates.get(group["groupName"], {}))}
        for group in spec["workerGroupSpecs"]
    ]
    head = {
        **spec["headGroupSpec"],
        "template": _with_additions(spec["headGroupSpec"]["template"], there["headGroupSpec"]["template"]),
    }
    return {**wanted, "spec": {**spec, "headGroupSpec": head, "workerGroupSpecs": groups}}


def _with_additions(wanted: Manifest, seen: Manifest) -> Manifest:
    found = {**wanted, "metadata": dict(wanted.get("metadata", {})), "spec": dict(wanted["spec"])}
    for path in ADDED_MAPPINGS:
        part, _, name = path.partition(".")
        added = seen.get(part, {}).get(name) or {}
        if added:
            found[part][name] = {**added, **found[part].get(name, {})}
    for path in ADDED_LISTS:
        part, _, name = path.partition(".")
        there = seen.get(part, {}).get(name) or ()
        # Kueue evicts a RayCluster whose tolerations change: an upgrade, or another setting, waits for the next one.
        mine = [each for each in found[part].get(name, ()) if each in there or not is_bound(each)]
        added = [each for each in there if each not in mine]
        if mine or added:
            found[part][name] = [*mine, *added]
        else:
            found[part].pop(name, None)
    return found


def job_of_workload(raw: Manifest) -> str:
    """Return the name of the job whose RayCluster a Workload is about; empty: of none."""
    found = CLUSTER_NAME.fullmatch(_cluster_of(raw))
    return found["job"] if found else ""


def workload_of(raw: Manifest) -> Workload:
    """Return what a Workload of `v1beta2` says."""
    conditions = {each["type"]: each for each in raw.get("status", {}).get("conditions", ())}
    reserved, admitted = (_is_true(conditions.get(kind)) for kind in ("QuotaReserved", "Admitted"))
    evicted = conditions.get("Evicted")
    condition = conditions.get("QuotaReserved")
    if reserved:
        condition = conditions.get("Admitted", condition)
    if reserved and (checks := _checks(raw)):
        condition = {**(condition or {}), "reason": "UnsatisfiedAdmissionChecks", "message": checks}
    if admitted and _is_true(evicted) and (_at(evicted or {}) or 0.0) >= (_at(conditions["Admitted"]) or 0.0):
        admitted, condition = False, evicted  # its quota is reserved until its pods are gone
    if raw.get("spec", {}).get("active") is False:
        condition = evicted or {"reason": "Deactivated", "message": "its Workload is deactivated: spec.active is false"}
    condition = condition or {}
    return Workload(
        cluster=_cluster_of(raw),
        reserved=reserved,
        reason=condition.get("reason") or "Pending",
        message=" ".join(condition.get("message", UNSEEN).split()),
        since=_at(condition),
        admitted_at=_at(conditions["Admitted"]) if admitted else None,
        eviction=_eviction(evicted) if _is_true(evicted) else "",
        queue=raw.get("spec", {}).get("queueName") or "",
    )


def _eviction(evicted: Mapping[str, str] | None) -> str:
    condition = evicted or {}
    message = " ".join(condition.get("message", "").split())
    return f"Kueue has evicted the job ({condition.get('reason', 'Unknown')}: {message})"


def _checks(raw: Manifest) -> str:
    """Return the admission checks that have not passed."""
    checks = raw.get("status", {}).get("admissionChecks", ())
    open_ones = [f"{each['name']} is {each['state']}" for each in checks if each["state"] != "Ready"]
    return f"quota is reserved, and admission checks are open: {', '.join(open_ones)}" if open_ones else ""


def _cluster_of(raw: Manifest) -> str:
    owners = raw["metadata"].get("ownerReferences", ())
    return next((str(each["name"]) for each in owners if each["kind"] == "RayCluster"), "")


def _is_true(condition: Mapping[str, str] | None) -> bool:
    return condition is not None and condition["status"] == "True"


def _at(condition: Mapping[str, str]) -> float | None:
    at = condition.get("lastTransitionTime")
    return datetime.fromisoformat(at).timestamp() if at else None
