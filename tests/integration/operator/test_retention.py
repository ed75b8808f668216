"""The run directory of a deleted job, in a real cluster: the operator makes the Job that deletes it, and forgets it."""

from collections.abc import Callable

from local_cluster.kubectl import Kubectl, Manifest
from support.waiting import eventually

SWEEP = ("--sweep-seconds=1", "--run-directory-ttl=2")


def records(kubectl: Kubectl, namespace: str) -> list[Manifest]:
    found: list[Manifest] = kubectl.get("configmaps", "-n", namespace, "-l", "rljob.dev/run-of=sums")["items"]
    return found


def test_a_deleted_job_s_directory_is_deleted_after_its_time(
    kubectl: Kubectl, namespace: str, new_job: Callable, start: Callable
) -> None:
    start(more=SWEEP)
    job = new_job()
    (record,) = eventually(lambda: records(kubectl, namespace), lambda found: len(found) == 1)
    assert record["data"]["directory"] == f"/rljob/{namespace}/sums"
    assert "ownerReferences" not in record["metadata"]
    job.delete()

    def cleaners() -> list[Manifest]:
        found: list[Manifest] = kubectl.get("jobs", "-n", namespace, "-l", "rljob.dev/run-of=sums")["items"]
        return found

    (cleaner,) = eventually(cleaners, lambda found: len(found) == 1)
    assert cleaner["spec"]["template"]["spec"]["containers"][0]["command"][-1] == f"/rljob/{namespace}/sums"
    eventually(cleaners, lambda found: found[0].get("status", {}).get("succeeded") == 1)
    assert eventually(lambda: records(kubectl, namespace), lambda found: found == []) == []


def test_a_job_that_is_applied_again_keeps_its_directory(
    kubectl: Kubectl, namespace: str, new_job: Callable, start: Callable
) -> None:
    start(more=("--sweep-seconds=1", "--run-directory-ttl=3600"))
    new_job()
    eventually(lambda: records(kubectl, namespace), lambda found: len(found) == 1)
    kubectl("delete", "rljob", "sums", "-n", namespace)

    def data() -> Manifest:
        found: Manifest = records(kubectl, namespace)[0]["data"]
        return found

    eventually(data, lambda found: "unusedSince" in found)
    new_job()
    eventually(data, lambda found: "unusedSince" not in found)
