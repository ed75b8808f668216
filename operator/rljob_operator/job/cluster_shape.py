"""From a spec to its RayCluster's worker groups, and to a digest of all that the cluster is built from. Pure."""

import hashlib
import json

from rljob_api.sections import Placement, Scheduling, Spec
from rljob_api.sizing.topology import REST, topology
from rljob_operator.identity import Manifest

LIVE = ("suspend", "managedBy", "recovery")
"""parts of a spec that only the operator reads"""
ROLLOUT = "rollout"
"""the worker group of engines that have separate pods"""


def worker_groups(spec: Spec) -> tuple[tuple[str, int, int], ...]:
    """Return (name, slots of a pod, pods) of each worker group.

    All pods of a group are alike, so a last node with fewer slots than the others becomes a separate group.
    """
    return tuple(
        (shape.group if shape.first == 0 else f"{shape.group}{REST}", shape.gpus, shape.count)
        for shape in topology(spec).shapes
    )


def is_of_engines(group: str) -> bool:
    """Return whether the pods of a worker group hold engines and no rank of the learner."""
    return group in (ROLLOUT, f"{ROLLOUT}{REST}")


def num_rollout_pods(spec: Spec) -> int:
    """Return the number of pods of the group `rollout`; 0: engines have no separate pods."""
    return sum(pods for group, _, pods in worker_groups(spec) if group == ROLLOUT)


def num_pods(spec: Spec) -> int:
    """Return the number of pods of the job's RayCluster, head included."""
    return 1 + sum(pods for _, _, pods in worker_groups(spec))


def can_scale(spec: Spec) -> bool:
    """Return whether the number of engines can change while the job trains.

    They need separate pods, and no queue: Kueue evicts a RayCluster whose number of pods changes.
    """
    return spec.placement is Placement.DISAGGREGATED and spec.scheduling.queue is None


def digest(manifest: Manifest, spec: Spec) -> str:
    """Return a digest of what a cluster is built from: all of the spec but what the operator itself acts on.

    The number of engines does not count as long as the pods have the same sizes.
    """
    built_from = {key: value for key, value in manifest["spec"].items() if key not in LIVE}
    sizes = [(group, size) for group, size, _ in worker_groups(spec)]
    if can_scale(spec):
        built_from["rollout"] = {key: value for key, value in built_from["rollout"].items() if key != "engines"}
    scheduling = dict(built_from.pop("scheduling", {}))
    for live in ("activeDeadlineSeconds", "startDeadlineSeconds", "ttlSecondsAfterFinished"):
        scheduling.pop(live, None)
    if scheduling.get("terminationGracePeriodSeconds") == Scheduling().termination_grace_period_seconds:
        del scheduling["terminationGracePeriodSeconds"]  # an upgrade of the CRD adds it to jobs that run
    text = json.dumps([built_from, scheduling, sizes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
