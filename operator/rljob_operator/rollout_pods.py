"""How many pods the worker group `rollout` shall have now, and which of its pods go. Pure.

More engines: the pods come first, and the driver waits for them. Fewer: the driver lets go of whole nodes first, and
when it says so their pods go, by name, so that none goes on which an engine works.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.control import EngineState, Status
from rljob_api.sections import Placement, Spec
from rljob_operator.identity import Manifest
from rljob_operator.memory import Attempt
from rljob_operator.world import ALIVE, Driver, Pod

GROUP = "rollout"


@dataclass(frozen=True, slots=True)
class RolloutPods:
    """The worker group as it shall be now."""

    replicas: int
    leaving: tuple[str, ...] = ()
    """names of pods that go"""


def rollout_pods(
    wanted: int, spec: Spec, attempt: Attempt, cluster: Manifest | None, pods: Sequence[Pod], driver: Driver | None
) -> RolloutPods:
    """Return the group for `wanted` pods; `cluster` is the attempt's RayCluster, `pods` are those of it that stay."""
    mine = [pod for pod in pods if pod.group == GROUP]
    nodes: tuple[str | None, ...] = ()
    if attempt.started is not None or (driver is not None and driver.state in ALIVE):
        status = driver.status if driver is not None else None
        if status is None or not is_settled(status, spec):
            return _as_it_is(wanted, cluster, mine)
        nodes = tuple(engine.node for engine in status.engines)
    free = sorted((pod for pod in mine if pod.ip not in nodes), key=lambda pod: (pod.is_ready, pod.name))
    return RolloutPods(wanted, tuple(pod.name for pod in free[: max(0, len(mine) - wanted)]))


def _as_it_is(wanted: int, cluster: Manifest | None, mine: Sequence[Pod]) -> RolloutPods:
    """Return the group without a new farewell; one that was said goes on, or KubeRay would choose another pod."""
    group = _group(cluster)
    if wanted > group["replicas"]:
        return RolloutPods(wanted)
    named = group.get("scaleStrategy", {}).get("workersToDelete", [])
    return RolloutPods(group["replicas"], tuple(pod.name for pod in mine if pod.name in named))


def is_settled(status: Status, spec: Spec) -> bool:
    """Return whether a driver has as many engines as there shall be, no others, and says where each of them is."""
    there = [engine for engine in status.engines if engine.state is not EngineState.LEAVING and engine.node is not None]
    wanted = spec.rollout.engines
    return status.scale is not None and status.scale.engines == wanted == len(there) == len(status.engines)


def can_scale(spec: Spec) -> bool:
    """Return whether engines have pods of their own."""
    return spec.placement is Placement.DISAGGREGATED


def _group(cluster: Manifest | None) -> Manifest:
    groups = cluster["spec"]["workerGroupSpecs"] if cluster is not None else []
    return next((group for group in groups if group["groupName"] == GROUP), {"replicas": 0})
