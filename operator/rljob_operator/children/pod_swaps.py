"""Pods whose engines die again and again, however often these are restarted: KubeRay makes other pods in their place.

    engine dead ─► restarted ─► out of restarts, others serve ─► its pod is swapped ─► restarted after the next step

Only pods without ranks of the learner, and only if none of their engines lives. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rljob_api import recovery
from rljob_api.control import EngineState, Status
from rljob_operator.attempts.attempt_view import AttemptView
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.job.cluster_shape import ROLLOUT, can_scale

ACTION = "ReplacePod"
MOST = 2
"""pods that an attempt swaps; after these, its engines stay dead, and the next rung is the driver's restart"""


@dataclass(frozen=True, slots=True)
class PodSwap:
    """A pod that is deleted for another one to be made."""

    pod: str
    reason: str

    @property
    def target(self) -> str:
        """What an action in the status names."""
        return f"pod {self.pod}"


def pod_swaps(attempt: AttemptView, job: AdmittedJob) -> tuple[PodSwap, ...]:
    """Return the pods to swap; one whose swap the status shows stays among them until it is gone.

    Kueue evicts a RayCluster whose pods change.
    """
    driver = attempt.driver
    if driver is None or driver.status is None or attempt.record.started is None or not can_scale(job.spec):
        return ()
    spent = {
        step.target: step.cause
        for step in job.status.recovery
        if step.action == ACTION and step.time.timestamp() >= attempt.record.started
    }
    broken = _broken(driver.status, job)
    found = [PodSwap(pod.name, broken.get(pod.ip, "")) for pod in attempt.pods if pod.group == ROLLOUT]
    known = [replace(each, reason=spent[each.target]) for each in found if each.target in spent]
    new = [each for each in found if each.reason and each.target not in spent]
    return (*known, *new[: max(0, MOST - len(spent))])


def _broken(status: Status, job: AdmittedJob) -> Mapping[str | None, str]:
    """Return the addresses of nodes whose engines are all dead and out of restarts, each with the reason of one."""
    reasons = recovery.exhausted(status.engines, recovery.history_of(status), job.spec.recovery)
    if not any(engine.state is EngineState.HEALTHY for engine in status.engines):
        return {}  # the attempt ends, or begins: pods are not what is wrong
    held = {engine.node for engine in status.engines if engine.name not in reasons}
    return {
        engine.node: reasons[engine.name]
        for engine in status.engines
        if engine.name in reasons and engine.node is not None and engine.node not in held
    }
