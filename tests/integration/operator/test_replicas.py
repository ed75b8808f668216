"""Replicas: one acts, another takes over, and one that has lost the Lease ends. And what a replica reports."""

import json
from collections.abc import Callable

from local_cluster.kubectl import Kubectl
from rljob_operator.runtime.background_tasks import TASK_ENDED
from support.operator import dying_resync
from support.waiting import eventually


def holder(kubectl: Kubectl, namespace: str) -> str:
    leases = kubectl.get("lease", "-n", namespace)["items"]
    return leases[0]["spec"].get("holderIdentity", "") if leases else ""


def renewals(kubectl: Kubectl, namespace: str) -> str:
    renewed: str = kubectl.get("lease", "-n", namespace)["items"][0]["spec"]["renewTime"]
    return renewed


def test_only_one_replica_acts_and_the_other_takes_over_at_once_after_a_clean_end(
    kubectl: Kubectl, new_job: Callable, start: Callable, namespace: str
) -> None:
    first = start("first")
    eventually(lambda: holder(kubectl, namespace), bool)
    second = start("second")
    second.get("/healthz")
    renewed = renewals(kubectl, namespace)
    eventually(lambda: renewals(kubectl, namespace), lambda now: now > renewed)
    job = new_job()
    job.until("Training")
    assert "action=apply" in first.log
    assert "action=lead" not in second.log
    assert first.terminate() == 0
    eventually(lambda: second.log, lambda log: "action=lead" in log, deadline_s=5)
    other = new_job("more")
    other.until("ClusterReady")


def test_a_replica_that_has_lost_the_lease_is_gone(
    kubectl: Kubectl, new_job: Callable, start: Callable, namespace: str
) -> None:
    first = start("first")
    eventually(lambda: first.log, lambda log: "action=lead" in log)
    second = start("second")
    second.get("/healthz")
    first.pause()
    eventually(lambda: second.log, lambda log: "action=lead" in log, deadline_s=40)
    first.resume()
    assert first.wait(20) == 1
    assert new_job().until("ClusterReady")


def test_a_replica_shows_its_health_and_its_metrics(new_job: Callable, start: Callable) -> None:
    operator = start()
    new_job().until("Training")
    assert operator.get("/healthz") == (200, "ok\n")
    _, text = operator.get("/metrics")
    assert 'rljob_operator_jobs{phase="Training"} 1.0' in text
    assert "rljob_operator_driver_submissions_total 1.0" in text
    assert "rljob_operator_is_leader 1.0" in text


def test_every_log_line_is_json_and_names_the_job_it_is_about(new_job: Callable, start: Callable) -> None:
    operator = start()
    job = new_job()
    job.until("ClusterReady")
    lines = [json.loads(line) for line in operator.log.splitlines()]
    applied = [line for line in lines if "action=apply" in line["message"]]
    assert {line["job"] for line in applied} == {f"{job.namespace}/sums"}


def test_a_replica_whose_resync_dies_ends_and_releases_the_lease(
    kubectl: Kubectl, start: Callable, namespace: str
) -> None:
    broken = start("broken", (dying_resync.__file__,))
    assert broken.wait(60) == TASK_ENDED
    assert "action=end reason=TaskEnded task=resync error=KeyError('a bug')" in broken.log
    assert holder(kubectl, namespace) == ""
