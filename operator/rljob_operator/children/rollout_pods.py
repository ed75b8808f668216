"""How many pods the worker group `rollout` should have now, and which of its pods are deleted. Pure.

More engines: the pods come first, and the driver waits for them. Fewer: the driver first releases whole nodes. Once it
reports that, their pods are deleted by name, so no pod with a working engine is deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.control import EngineState, Status
from rljob_api.sections import Spec
from rljob_operator.attempts.attempt_view import AttemptView
from rljob_operator.identity import Manifest
from rljob_operator.job.cluster_shape import ROLLOUT, num_rollout_pods
from rljob_operator.world.world import Pod


@dataclass(frozen=True, slots=True)
class RolloutPods:
    """The worker group as it should be now."""

    replicas: int
    leaving: tuple[str, ...] = ()
    """names of pods to delete"""


def rollout_pods(attempt: AttemptView, spec: Spec, swapped: Sequence[str] = ()) -> RolloutPods:
    """Return the group that this spec wants for an open attempt; other pods follow those that are swapped."""
    wanted, mine = num_rollout_pods(spec), [pod for pod in attempt.pods if pod.group == ROLLOUT]
    nodes: tuple[str | None, ...] = ()
    if attempt.record.started is not None or attempt.has_live_driver:
        status = attempt.driver.status if attempt.driver is not None else None
        if status is None or not is_settled(status, spec):
            return _as_it_is(wanted, attempt.cluster, mine)
        nodes = tuple(engine.node for engine in status.engines)
    free = sorted((pod for pod in mine if pod.ip not in nodes), key=lambda pod: (pod.is_ready, pod.name))
    leaving = [pod.name for pod in free[: max(0, len(mine) - wanted)]]
    return RolloutPods(wanted, (*leaving, *(name for name in swapped if name not in leaving)))


def _as_it_is(wanted: int, cluster: Manifest | None, mine: Sequence[Pod]) -> RolloutPods:
    """Return the group without new deletions. Those under way stay named, or KubeRay would choose other pods."""
    group = _group(cluster)
    if wanted > group["replicas"]:
        return RolloutPods(wanted)
    named = group.get("scaleStrategy", {}).get("workersToDelete", [])
    return RolloutPods(group["replicas"], tuple(pod.name for pod in mine if pod.name in named))


def is_settled(status: Status, spec: Spec) -> bool:
    """Return whether a driver has exactly the engines that the spec wants, and reports the node of each."""
    there = [engine for engine in status.engines if engine.state is not EngineState.LEAVING and engine.node is not None]
    wanted = spec.rollout.engines
    return status.scale is not None and status.scale.engines == wanted == len(there) == len(status.engines)


def _group(cluster: Manifest | None) -> Manifest:
    groups = cluster["spec"]["workerGroupSpecs"] if cluster is not None else []
    return next((group for group in groups if group["groupName"] == ROLLOUT), {"replicas": 0})
