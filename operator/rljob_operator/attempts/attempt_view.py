"""An attempt with all that is observed of it: its driver, its RayCluster, its pods. Pure; derived once in a plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rljob_operator.identity import SPEC_ANNOTATION, Manifest, submission_id
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.world.history import AttemptRecord
from rljob_operator.world.kueue import Workload
from rljob_operator.world.pod_stage import PodEvent
from rljob_operator.world.world import ALIVE, Driver, Observed, Pod, is_deleting


@dataclass(frozen=True, slots=True)
class AttemptView:
    """The newest attempt of a job."""

    record: AttemptRecord
    driver: Driver | None
    """what is known of this attempt's driver; None: nothing. What is known of an older one says nothing about it"""
    cluster: Manifest | None
    """its RayCluster"""
    is_built_for_spec: bool
    """whether the RayCluster was built from what the job's spec says now; False without a RayCluster"""
    pods: tuple[Pod, ...]
    """of its RayCluster, without those that are being deleted"""
    tool_pods: tuple[Pod, ...]
    """that run its tools, without those that are being deleted"""
    ending: tuple[Pod, ...]
    """of its RayCluster, that are being deleted or gone"""
    stuck: frozenset[str]
    """names of those that are being deleted, and will not end: their node is lost"""
    others: tuple[str, ...]
    """RayClusters of the job besides its own, and pods that such have left behind"""
    refused: str | None
    """why the API server refused one of its children; None: it refused none"""
    pod_events: Mapping[str, tuple[PodEvent, ...]]
    """events of a pod that does not start, by its name"""
    has_pods: bool = False
    """whether a pod of its RayCluster is left, those included that are being deleted"""
    workload: Workload | None = None
    """what Kueue says about its RayCluster; None: nothing"""
    is_in_kueue: bool = False
    """whether Kueue decides when its pods start; otherwise a user has suspended the RayCluster"""
    has_lost_head: bool = False
    """whether its head's pod should have ended, and has not: its node is lost"""
    is_token_sure: bool = True
    """whether the operator's token is surely that of its pods"""

    @property
    def has_live_driver(self) -> bool:
        """Whether Ray shows the driver as pending or running."""
        return self.driver is not None and self.driver.state in ALIVE

    @property
    def has_ready_head(self) -> bool:
        return any(pod.is_head and pod.is_ready for pod in self.pods)

    @property
    def is_suspended(self) -> bool:
        """Whether its RayCluster is suspended. The operator never does that; Kueue does, before it admits the job and
        when it evicts it, and an administrator can.
        """
        return self.cluster is not None and self.cluster["spec"].get("suspend") is True

    @property
    def lost_its_cluster(self) -> bool:
        return self.cluster is None or is_deleting(self.cluster)


def attempt_view(record: AttemptRecord, job: AdmittedJob, observed: Observed, lost_before: float = 0.0) -> AttemptView:
    """Return the attempt with what is observed of it.

    A kubelet would have ended a pod that should have ended before `lost_before` [unix s]: its node is lost. A silent
    kubelet ends none, and gives none its grace period. What such a pod may still do is kept from the run by its fence.
    """

    def is_lost(pod: Pod) -> bool:
        return pod.gone_by is not None and (pod.is_on_silent_node or pod.gone_by < lost_before)

    wanted, cluster = submission_id(job.name, job.uid, record.number), observed.child("RayCluster", record.cluster)
    workload = next((each for each in observed.workloads if each.cluster == record.cluster), None)
    driver, mine = observed.driver, [pod for pod in observed.pods if pod.cluster == record.cluster]
    return AttemptView(
        record=record,
        driver=driver if driver is not None and driver.submission_id == wanted else None,
        cluster=cluster,
        is_built_for_spec=cluster is not None and built_from(cluster) == job.digest,
        pods=observed.pods_of(record.cluster),
        tool_pods=tuple(pod for pod in observed.tool_pods if pod.tools_of == record.cluster and not pod.is_deleting),
        ending=tuple(
            pod for pod in (*observed.pods, *observed.gone_pods) if pod.cluster == record.cluster and pod.is_deleting
        ),
        stuck=frozenset(pod.name for pod in mine if is_lost(pod)),
        others=_others(record.cluster, observed, is_lost),
        refused=observed.refused,
        pod_events=observed.pod_events,
        has_pods=not all(map(is_lost, mine)),
        workload=workload,
        is_in_kueue=job.spec.scheduling.queue is not None or (workload is not None and workload.queue != ""),
        has_lost_head=any(pod.is_head and is_lost(pod) for pod in mine),
        is_token_sure=observed.is_token_sure,
    )


def built_from(cluster: Manifest) -> str | None:
    """Return the digest of what a RayCluster was built from."""
    annotations: dict[str, str] = cluster["metadata"].get("annotations", {})
    return annotations.get(SPEC_ANNOTATION)


def _others(cluster: str, observed: Observed, is_lost: Callable[[Pod], bool]) -> tuple[str, ...]:
    names = {child["metadata"]["name"] for child in observed.rayclusters()}
    pods = {pod.name for pod in observed.pods if not is_lost(pod) and pod.cluster not in {cluster, *names}}
    return (
        *(f"RayCluster {name}" for name in sorted(names - {cluster})),
        *(f"pod {name}" for name in sorted(pods)),
    )
