"""`rljob logs` reads in a pod through a real kubelet. The pod is no head: it only has a head's labels and files."""

import json
from collections.abc import Iterator

import pytest

from local_cluster.fixtures import temporary_namespace
from local_cluster.kubectl import Kubectl
from rljob_api.exits import Exit
from support.cli.command import rljob, started
from support.cluster.busybox import pod
from support.operator.operator_world import raw_job
from support.waiting import eventually

RUN = "/tmp/run"
RAY = "/tmp/ray/session_latest/logs"
WRITE = f"""
mkdir -p {RUN}/logs {RAY}
echo from a node that is gone > {RUN}/logs/driver-attempt-1.log
printf 'one\\ntwo\\n' > {RAY}/job-driver-$ID-attempt-2.log
echo ready > {RUN}/logs/engine-0.log
exec sleep 600"""


@pytest.fixture(scope="module")
def namespace(kubectl: Kubectl) -> Iterator[str]:
    with temporary_namespace(kubectl) as name:
        kubectl.apply({**raw_job(), "metadata": {"name": "sums", "namespace": name}})
        uid = kubectl.get("rljob", "sums", "-n", name)["metadata"]["uid"]
        head = pod("head", name, f"ID=sums-{uid[:5]}; {WRITE}")
        labels = {"rljob.dev/job": "sums", "ray.io/node-type": "head", "ray.io/cluster": "sums-2"}
        kubectl.apply({**head, "metadata": {**head["metadata"], "labels": labels}})
        attempts = [attempt(1, ended="2026-11-21T12:01:00Z"), attempt(2)]
        write_status(kubectl, name, phase="Training", attempt=2, attempts=attempts, directory=RUN)
        kubectl("wait", "--for=condition=Ready", "pod/head", "-n", name, "--timeout=60s")
        found = f"test -e {RUN}/logs/engine-0.log && echo yes || true"
        eventually(lambda: kubectl("exec", "head", "-n", name, "--", "sh", "-c", found), bool)
        yield name


def attempt(number: int, **more: str) -> dict[str, object]:
    start = "2026-11-21T12:00:00Z"
    return {"number": number, "cluster": f"sums-{number}", "startAfter": start, "started": start, **more}


def write_status(kubectl: Kubectl, namespace: str, **status: object) -> None:
    """Write the job's status as the operator would."""
    patch = json.dumps({"status": status})
    kubectl("patch", "rljob", "sums", "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "one\ntwo\n"),
        (("--tail", "1"), "two\n"),
        (("--attempt", "1"), "from a node that is gone\n"),
        (("--attempt", "1", "-f"), "from a node that is gone\n"),
        (("--engine", "engine-0"), "ready\n"),
    ],
)
def test_logs_are_read_in_the_head(kubectl: Kubectl, namespace: str, arguments: tuple[str, ...], expected: str) -> None:
    log = rljob("logs", "sums", "-n", namespace, *arguments, kubeconfig=kubectl.kubeconfig)
    assert (log.code, log.err, log.out) == (Exit.OK, "", expected)


def test_a_log_that_is_not_there_names_where_it_was_looked_for(kubectl: Kubectl, namespace: str) -> None:
    log = rljob("logs", "sums", "-n", namespace, "--engine", "engine-9", kubeconfig=kubectl.kubeconfig)
    assert (log.code, log.out) == (Exit.NOT_FOUND, "")
    assert log.err == f"the log of engine-9 is not on pod head: looked for {RUN}/logs/engine-9.log\n"


def test_following_ends_when_the_attempt_has_ended(kubectl: Kubectl, namespace: str) -> None:
    log = started("logs", "sums", "-n", namespace, "-f", kubeconfig=kubectl.kubeconfig)
    assert log.stdout is not None
    assert [log.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
    write = f"echo three >> $(echo {RAY}/*attempt-2.log)"
    kubectl("exec", "head", "-n", namespace, "--", "sh", "-c", write)
    assert log.stdout.readline() == "three\n"
    ended = [attempt(1, ended="2026-11-21T12:01:00Z"), attempt(2, ended="2026-11-21T12:02:00Z")]
    write_status(kubectl, namespace, attempts=ended)
    assert (log.wait(60), log.stdout.read()) == (Exit.OK, "")


def test_following_ends_when_the_job_has_ended_and_its_pods_go(kubectl: Kubectl, namespace: str) -> None:
    log = started("logs", "sums", "-n", namespace, "--engine", "engine-0", "-f", kubeconfig=kubectl.kubeconfig)
    assert log.stdout is not None
    assert log.stdout.readline() == "ready\n"
    write_status(kubectl, namespace, phase="Succeeded")
    kubectl("delete", "pod", "head", "-n", namespace)
    assert (log.wait(60), log.stdout.read()) == (Exit.OK, "")
    freed = rljob("logs", "sums", "-n", namespace, kubeconfig=kubectl.kubeconfig)
    assert freed.code == Exit.NOT_FOUND
    assert f"it is at {RUN}/logs/driver-attempt-2.log on the volume" in freed.err
