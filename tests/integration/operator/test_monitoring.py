"""What Prometheus finds of an operator with jobs in many phases, by the chart's own PodMonitors."""

import re
from collections.abc import Callable
from pathlib import Path

from local_cluster.kubectl import Kubectl
from rljob_api.control import EngineState
from rljob_operator.installation import RIGHTS
from support.operator.fake_head import FakeHeads
from support.operator.helm_release import rendered
from support.operator.prometheus_server import Target, queries, running, scrape_config, targets_of
from support.operator.queue_fleet import quota
from support.waiting import eventually

MONITORED = "--set=monitoring.podMonitors.enabled=true"
VERBS = {"apply": ("create", "patch")}
CLEANING = {("jobs", verb) for verb in ("get", "create", "delete")}
TOOL_PODS = {("statefulsets", verb) for verb in ("create", "patch", "delete")}
RARE = {("rljobs", "delete"), ("rljobs/finalizers", "update"), ("events", "patch"), ("events", "list")}
RARE |= CLEANING | TOOL_PODS
"""rights for a time to live, for owner references, for repeated events, for pods that do not say why they wait, for
directories of deleted jobs, and for tools in pods
"""
NOWHERE = {"nodeSelector": {"no": "such-node"}}


def phases(kubectl: Kubectl, namespace: str) -> dict[str, str]:
    jobs = kubectl.get("rljobs", "-n", namespace)["items"]
    return {job["metadata"]["name"]: job.get("status", {}).get("phase", "") for job in jobs}


def test_every_query_about_the_operator_finds_something_and_every_right_is_used(
    kubectl: Kubectl,
    new_job: Callable,
    start: Callable,
    heads: FakeHeads,
    prometheus: Path,
    namespace: str,
    tmp_path: Path,
) -> None:
    kubectl.apply(quota(namespace, 1))
    operator = start()
    operator.get("/metrics")
    port = re.search(r"action=serve port=(\d+)", operator.log)
    assert port is not None
    monitor = rendered(MONITORED)["PodMonitor/rl-operator"]
    target = Target(f"127.0.0.1:{port[1]}", "rljob", "rl-operator-0", monitor["spec"]["selector"]["matchLabels"])
    with running(prometheus, tmp_path / "prometheus", [scrape_config(monitor, [target])]) as server:
        new_job("fails").until("Training")
        heads.head(namespace).end(3)
        new_job("trains").until("Training")
        new_job("waits", scheduling=NOWHERE)
        new_job("queued", placement="Colocated", runtime={"device": "Gpu"})
        new_job("invalid", checkpoint={"directory": "/not/shared"})
        lame = new_job("recovers")
        lame.until("Training")
        head = next(head for (_, service), head in heads.heads.items() if service.startswith("recovers"))
        first, second = head.status.engines
        down = first.model_copy(update={"state": EngineState.STARTING, "restarts": 1})
        head.change(engines=(down, second))
        wanted = {
            "fails": "Failed",
            "trains": "Training",
            "waits": "Provisioning",
            "queued": "Queued",
            "invalid": "Invalid",
            "recovers": "Recovering",
        }
        eventually(lambda: phases(kubectl, namespace), lambda found: found == wanted)
        server.until_scraped('rljob_operator_job_phase{phase="Recovering"}')
        asked = [query for query in queries() if query.is_about_the_operator]
        # A subquery looks at whole multiples of its step (10 s): a fast machine is here before the first of them.
        eventually(lambda: server.silent(asked, namespace=namespace, rljob="trains"), lambda silent: silent == [])
        (seen,) = server.query('rljob_operator_job_phase{rljob="trains"}')
        assert (seen["metric"]["namespace"], seen["metric"]["pod"]) == (namespace, "rl-operator-0")
        sent = {
            (each["metric"]["resource"], verb)
            for each in server.query("rljob_operator_api_requests_total")
            for verb in VERBS.get(each["metric"]["verb"], (each["metric"]["verb"],))
        }
        given = {(resource, verb) for _, resource, verbs in RIGHTS for verb in verbs if verb != "watch"}
        assert given - sent == RARE


def test_the_pod_monitor_of_jobs_selects_their_heads_and_nothing_else(
    kubectl: Kubectl, new_job: Callable, start: Callable, namespace: str
) -> None:
    start()
    job = new_job(runtime={"device": "Cpu", "metricsPort": 9100})
    job.until("ClusterReady")
    pods = kubectl.get("pods", "-n", namespace)["items"]
    (target,) = targets_of(rendered(MONITORED)["PodMonitor/rl-operator-jobs"], pods)
    assert target.address.endswith(":9100")
    assert "-head" in target.pod
    assert target.labels["rljob.dev/job"] == job.name
