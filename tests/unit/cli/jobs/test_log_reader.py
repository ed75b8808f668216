"""Logs of a job whose pods are gone: the pod that reads them, and what is said where none can."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rljob_api.exits import Exit
from rljob_api.status import ConditionType, DefaultVolume, Phase, Resolved
from rljob_cli.cluster import verbs as cluster_verbs
from rljob_cli.cluster.cluster import ClusterError, NoObjectError, NotPossibleError
from rljob_cli.cluster.verbs import Scope
from rljob_cli.jobs.job_logs import Wanted, driver_log
from rljob_cli.jobs.jobs import Job, Manifest, job_of
from rljob_cli.jobs.log_reader import reader
from support.api.sample_rljob_status import SAMPLE
from support.cli.sample_job import in_phase, raw

CLAIM = {"persistentVolumeClaim": {"claimName": "runs"}}


def ended(source: dict[str, Any] = CLAIM, sub_path: str | None = None, image: str | None = "trainer:1") -> Job:
    """Return a job that has succeeded, in the operator's volume."""
    volume = DefaultVolume(source=source, path="/rljob", sub_path=sub_path)
    resolved = Resolved(image=image, directory="/rljob/ml/sums", volume=volume)
    return in_phase(Phase.SUCCEEDED, ConditionType.SUCCEEDED, directory="/rljob/ml/sums", resolved=resolved)


def pod_for(job: Job) -> Manifest:
    found = reader(job, driver_log(job, None))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("sub_path", "mount"),
    [(None, {"mountPath": "/rljob"}), ("ml/sums", {"mountPath": "/rljob/ml/sums", "subPath": "ml/sums"})],
)
def test_the_pod_mounts_what_the_job_mounted_and_cannot_write(sub_path: str | None, mount: dict) -> None:
    pod = pod_for(ended(sub_path=sub_path))["spec"]
    assert pod["volumes"] == [{"name": "run", **CLAIM}]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "run", "readOnly": True, **mount}]
    assert pod["containers"][0]["image"] == "trainer:1"


def test_the_pod_passes_restricted_and_ends_by_itself() -> None:
    pod = pod_for(ended())["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert (pod["activeDeadlineSeconds"], pod["automountServiceAccountToken"]) == (600, False)


def test_a_volume_of_the_job_s_own_is_found_by_the_directory() -> None:
    given = raw(SAMPLE.model_copy(update={"phase": Phase.FAILED, "resolved": None, "directory": "/runs/a/sums"}))
    given["spec"]["runtime"] = {
        "image": "mine:1",
        "volumes": [{"name": "outer", "nfs": {"path": "/o"}}, {"name": "inner", "nfs": {"path": "/i"}}],
        "volumeMounts": [{"name": "outer", "mountPath": "/runs"}, {"name": "inner", "mountPath": "/runs/a"}],
        "imagePullSecrets": ["registry"],
    }
    pod = pod_for(job_of(given))["spec"]
    assert pod["volumes"] == [{"name": "run", "nfs": {"path": "/i"}}]
    assert pod["restartPolicy"] == "Never"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


def test_the_pod_has_the_pull_secrets_of_all_jobs_that_the_job_s_own_pods_had() -> None:
    settings = {"runtime": {"imagePullSecrets": ["registry", "mirror"]}}
    job = ended()
    resolved = job.status.resolved.model_copy(update={"defaults": settings}) if job.status.resolved else None
    given = raw(job.status.model_copy(update={"resolved": resolved}))
    given["spec"]["runtime"] = {"imagePullSecrets": ["mine", "mirror"]}
    pod = pod_for(job_of(given))["spec"]
    assert pod["imagePullSecrets"] == [{"name": name} for name in ("registry", "mirror", "mine")]


@pytest.mark.parametrize("job", [ended({"emptyDir": {}}), ended(image=None)])
def test_there_is_none_where_the_volume_is_gone_or_the_image_is_not_known(job: Job) -> None:
    assert reader(job, driver_log(job, None)) is None


class Cluster:
    """A cluster where the job has no pods, and one can be started, or not."""

    namespace = "ml"

    def __init__(self, job: Job, refusal: ClusterError | None = None, missing: bool = False) -> None:
        self._job, self._refusal, self._missing = job, refusal, missing
        self.pods: list[str] = []

    def job(self, namespace: str, name: str) -> Job:
        return self._job

    def heads(self, job: Job) -> list[Manifest]:
        return []

    @contextmanager
    def running(self, pod: Manifest) -> Iterator[Manifest]:
        if self._refusal:
            raise self._refusal
        self.pods.append("created")
        try:
            yield {**pod, "metadata": {**pod["metadata"], "name": "reader"}}
        finally:
            self.pods.append("deleted")

    def run(self, pod: Manifest, command: list[str], is_over: Any) -> Iterator[bytes]:
        if self._missing:
            raise NoObjectError("no such file", Exit.NOT_FOUND)
        yield f"{command[-1]}\n".encode()


def logs(cluster: Any) -> None:
    cluster_verbs.logs(Scope(cluster, "ml"), "sums", Wanted(), follow=False, tail=None)


def test_the_log_comes_from_the_volume_and_the_pod_is_deleted(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    cluster = Cluster(ended())
    logs(cluster)
    out, err = capfdbinary.readouterr()
    assert out == b"/rljob/ml/sums/logs/driver-attempt-2.log\n"
    assert b"starting one that reads its volume" in err
    assert cluster.pods == ["created", "deleted"]


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        (
            Cluster(ended(), NotPossibleError("no permission", Exit.FORBIDDEN)),
            "on the volume of the job; no permission",
        ),
        (Cluster(ended(), missing=True), "is not on the volume: looked for /rljob/ml/sums/logs/driver-attempt-2.log"),
        (Cluster(ended({"emptyDir": {}})), "its pods are deleted"),
    ],
)
def test_what_is_not_possible_is_said(cluster: Cluster, says: str) -> None:
    with pytest.raises(ClusterError, match=says):
        logs(cluster)
