"""The history of a job whose status was lost, from what exists of the job. Pure.

A status can be lost by a restore of the API server's data, or by a program that writes it. Without a history the
operator would begin with attempt 1: delete the live RayCluster, and start drivers that the fence of the run directory
refuses, because it has seen later attempts.
"""

from rljob_api.exits import Exit
from rljob_operator.identity import ATTEMPT_ANNOTATION, Manifest, attempt_of_cluster, cluster_name
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.world.history import AttemptRecord, JobHistory
from rljob_operator.world.world import Observed, is_deleting

LOST = "the status of the job was lost"


def rebuilt(known: JobHistory, job: AdmittedJob, observed: Observed, now: float) -> JobHistory:
    """Return the known history; if there is none, the newest attempt of which something is left.

    The newest RayCluster is adopted with its driver. Without any, the attempt has ended, and the next one follows it.
    """
    if known.attempts or known.outcome is not None:
        return known
    number = max((_attempt(child) for child in observed.children), default=0)
    if number == 0:
        return known
    clusters = [cluster["metadata"]["name"] for cluster in observed.rayclusters() if not is_deleting(cluster)]
    if not clusters:
        gone = cluster_name(job.name, job.uid, number)
        ended = AttemptRecord(number, gone, int(now), ended=int(now), exit_code=Exit.PREEMPTED, reason=LOST)
        return JobHistory((ended,))
    newest = max(clusters, key=attempt_of_cluster)
    # Where a head is ready a driver may run, and nothing is submitted or stopped until Ray has answered.
    has_head = any(pod.is_head and pod.is_ready for pod in observed.pods_of(newest))
    return JobHistory((AttemptRecord(number, newest, int(now), started=int(now) if has_head else None),))


def _attempt(child: Manifest) -> int:
    """Return the latest attempt that a child shows; 0: none."""
    metadata = child["metadata"]
    annotated = metadata.get("annotations", {}).get(ATTEMPT_ANNOTATION, "")
    named = attempt_of_cluster(metadata["name"]) if child["kind"] == "RayCluster" else 0
    return max(named, int(annotated) if annotated.isdecimal() else 0)
