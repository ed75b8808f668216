"""What the end of an attempt counts as: a failure of the run, of the infrastructure, or a suspension. Pure."""

from collections.abc import Sequence

from rljob_api import recovery
from rljob_api.exits import Cause, Exit
from rljob_operator.attempts.attempt_view import AttemptView
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.job.cluster_shape import num_pods
from rljob_operator.world.history import AttemptRecord
from rljob_operator.world.world import Pod


def cause_of(ended: AttemptRecord, attempt: AttemptView, earlier: Sequence[AttemptRecord], job: AdmittedJob) -> Cause:
    """Return what the end of an attempt counts as, from what is observed of it and the attempts before it."""
    if ended.exit_code == Exit.PREEMPTED:
        # An order to save and end cannot be taken back, so an end after it is a suspension, even if it has been
        # withdrawn.
        is_asked = job.is_suspended or attempt.is_suspended or ended.ending_since is not None or ended.started is None
        return Cause.SUSPENDED if is_asked else Cause.INFRASTRUCTURE
    if ended.exit_code == Exit.OUT_OF_MEMORY or any(_ran_out_of_memory(pod, ended) for pod in attempt.pods):
        return Cause.APPLICATION
    if has_lost_pods(attempt, job):
        return Cause.INFRASTRUCTURE
    if ended.exit_code not in (Exit.LOST_PEER, Exit.AWAY):
        return Cause.APPLICATION
    # A dead node is reported as such only after 40 s. Without a report, a run that dies before it gets further than
    # the attempts before it may die of itself, and has the smaller budget.
    before = recovery.reached([each.for_policy() for each in earlier])
    is_lost_by_ray = ended.verdict is None and (attempt.driver is None or attempt.driver.exit_code is None)
    got_further = before.is_behind(ended.for_policy(), counts_steps=True)
    return Cause.INFRASTRUCTURE if is_lost_by_ray or got_further else Cause.APPLICATION


def _ran_out_of_memory(pod: Pod, attempt: AttemptRecord) -> bool:
    """Return whether a pod ran out of memory in this attempt: its status shows that also long after it."""
    return pod.out_of_memory_at is not None and attempt.started is not None and pod.out_of_memory_at >= attempt.started


def has_lost_pods(attempt: AttemptView, job: AdmittedJob) -> bool:
    """Return whether pods of the attempt's RayCluster are gone, not ready, or younger than the attempt."""
    if attempt.lost_its_cluster:
        return True
    started = attempt.record.started
    lost = [pod for pod in attempt.pods if not pod.is_ready or (started is not None and _is_successor(pod, started))]
    return bool(lost) or len(attempt.pods) < num_pods(job.spec)


def _is_successor(pod: Pod, started: float) -> bool:
    """Return whether a pod was made while the driver ran: KubeRay replaces a lost one at once."""
    return pod.created > started
