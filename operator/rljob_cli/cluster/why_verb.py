"""What `why` does with a cluster: it reads what its user may read, and shows the answer."""

import time
from dataclasses import asdict, replace

from rljob_cli.cluster.cluster import Cluster, NoObjectError
from rljob_cli.jobs.jobs import Job, Manifest, job_of
from rljob_cli.jobs.why import Seen, Why, stuck, why
from rljob_cli.records.run_health_view import table
from rljob_cli.terminal.prose import say_prose
from rljob_operator.capacity.queues import queues
from rljob_operator.capacity.snapshot import ALIVE
from rljob_operator.identity import JOB_LABEL
from rljob_operator.world.pod_stage import PodEvent, pod_event_of

KUEUE = "apis/kueue.x-k8s.io/v1beta2"
ASKED = 3
"""pods whose events are read"""


def explain(cluster: Cluster, namespace: str, name: str) -> tuple[Job, Why]:
    """Return a job, and what it waits for."""
    raw = cluster.raw_job(namespace, name)
    job, place = job_of(raw), f"api/v1/namespaces/{namespace}"
    mine = f"{JOB_LABEL}={name}"
    seen = Seen(
        job=raw,
        rayclusters=_rayclusters(cluster, f"apis/ray.io/v1/namespaces/{namespace}/rayclusters", mine),
        pods=cluster.readable(f"{place}/pods", mine) or (),
    )
    seen = replace(seen, events={pod.name: _events(cluster, namespace, pod.name) for pod in stuck(seen)[:ASKED]})
    if not seen.pods:
        seen = replace(
            seen,
            quotas=cluster.readable(f"{place}/resourcequotas"),
            limits=cluster.readable(f"{place}/limitranges"),
            nodes=cluster.readable("api/v1/nodes"),
            others=cluster.readable("api/v1/pods", fields=ALIVE),
        )
    if any(raw["spec"].get("suspend") for raw in seen.rayclusters or ()):
        local, clusters, cohorts = (
            cluster.readable(f"{KUEUE}/{path}")
            for path in (f"namespaces/{namespace}/localqueues", "clusterqueues", "cohorts")
        )
        seen = replace(
            seen,
            workloads=cluster.readable(f"{KUEUE}/namespaces/{namespace}/workloads") or (),
            queues=None if local is None or clusters is None else queues(local, clusters, cohorts or ()),
        )
    return job, why(job, seen, time.time())


def show(job: Job, found: Why) -> None:
    """Print the sentence, and the evidence below it."""
    sentence = f"{job.key} is {job.status.phase or 'new'}: {found.sentence}"
    evidence = (f"  {kind:9}  {text}" for kind, text in found.evidence)
    say_prose("\n".join([sentence, *table(found.numbers), *evidence]))


def value(job: Job, found: Why) -> dict[str, object]:
    """Return the answer as JSON shows it."""
    return {
        "namespace": job.namespace,
        "name": job.name,
        "phase": job.status.phase,
        "blocker": found.blocker,
        "since": found.since,
        "sentence": found.sentence,
        "evidence": [{"kind": kind, "text": text} for kind, text in found.evidence],
        "numbers": [asdict(each) for each in found.numbers],
    }


def _rayclusters(cluster: Cluster, path: str, selector: str) -> list[Manifest] | None:
    """Return the RayClusters of a job; None: the cluster does not serve this kind."""
    try:
        return [{**raw, "kind": "RayCluster"} for raw in cluster.readable(path, selector) or ()]
    except NoObjectError:
        return None


def _events(cluster: Cluster, namespace: str, pod: str) -> tuple[PodEvent, ...]:
    # The cluster's roles view, edit and admin have events only in the core group.
    path, fields = f"api/v1/namespaces/{namespace}/events", f"involvedObject.kind=Pod,involvedObject.name={pod}"
    found = cluster.readable(path, fields=fields)
    return tuple(pod_event_of(raw) for raw in found or ())
