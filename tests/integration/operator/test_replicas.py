"""Replicas: one acts, another takes over, and who has lost the Lease is gone. And what a replica tells of itself."""

import json
from collections.abc import Callable

from local_cluster.kubectl import Kubectl
from waiting import eventually


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
    eventually(lambda: second.log, lambda log: "action=lead" in log, deadline_s=8)
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


def test_a_replica_tells_its_health_and_its_metrics(new_job: Callable, start: Callable) -> None:
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
