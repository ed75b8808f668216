"""`kubectl scale` on a running job, on a real API server with the real KubeRay; engines are those of a fake head."""

import json
import time
from collections.abc import Callable

import pytest

from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl, Manifest
from rljob_api.control import Decision, EngineState, EngineStatus, Scale
from support.operator.fake_head import FakeHeads, Head
from support.operator.operator_job import Job
from support.waiting import eventually


def rollout(job: Job) -> dict[str, str]:
    """Return the address of each pod that is for engines, by its name."""
    return {
        pod["metadata"]["name"]: pod["status"].get("podIP", "")
        for pod in job.pods()
        if pod["metadata"]["labels"]["ray.io/group"] == "rollout" and "deletionTimestamp" not in pod["metadata"]
    }


def engines_on(head: Head, *nodes: str) -> None:
    """The driver has an engine on each of these pods and no others."""
    head.change(
        engines=tuple(
            EngineStatus(name=f"engine-{i}", state=EngineState.HEALTHY, since=time.time(), version=3, node=node)
            for i, node in enumerate(nodes)
        )
    )


def of_group(kubectl: Kubectl, job: Job) -> Manifest:
    (cluster,) = kubectl.get("raycluster", "-n", job.namespace)["items"]
    found: Manifest = next(g for g in cluster["spec"]["workerGroupSpecs"] if g["groupName"] == "rollout")
    return found


def test_kubectl_scale_adds_pods_and_takes_away_those_without_engines(
    kubectl: Kubectl, new_job: Callable[..., Job], start: Callable, heads: FakeHeads
) -> None:
    start()
    job = new_job(training={"gpusPerNode": 1})
    job.until("EnginesReady")
    head, before = heads.head(job.namespace), rollout(job)
    assert len(before) == 2

    kubectl("scale", "rljob/sums", "-n", job.namespace, "--replicas=3")
    eventually(lambda: head.scales, lambda orders: orders == [Scale(generation=2, engines=3)])
    pods = eventually(lambda: rollout(job), lambda pods: len(pods) == 3 and all(pods.values()))
    assert before.items() <= pods.items(), "those that were there stay"
    engines_on(head, *pods.values())
    eventually(lambda: job.raw()["status"]["engines"]["ready"], lambda ready: ready == 3)
    scale = json.loads(kubectl("get", "rljob", "sums", "-n", job.namespace, "--subresource=scale", "-o", "json"))
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (3, 3)
    selected = kubectl.get("pods", "-n", job.namespace, "-l", scale["status"]["selector"])["items"]
    assert {pod["metadata"]["name"] for pod in selected} == set(pods)

    kubectl("scale", "rljob/sums", "-n", job.namespace, "--replicas=1")
    eventually(lambda: head.scales[-1].engines, lambda engines: engines == 1)
    assert of_group(kubectl, job)["replicas"] == 3, "engines still work there"
    name, address = sorted(pods.items())[1]
    engines_on(head, address)
    assert eventually(lambda: rollout(job), lambda pods: len(pods) == 1) == {name: address}
    eventually(lambda: of_group(kubectl, job), lambda group: group["scaleStrategy"] == {"workersToDelete": []})
    assert of_group(kubectl, job)["replicas"] == 1

    status = job.raw()["status"]
    assert len(status["attempts"]) == len(heads.submissions) == 1, "it was one run all the time"
    assert "Scaled" in job.events()
    head.end(5)
    eventually(lambda: len(heads.submissions), lambda count: count == 2)
    assert "--engines 1" in head.entrypoints[-1]


def test_colocated_engines_are_not_scaled(new_job: Callable[..., Job], start: Callable, kubectl: Kubectl) -> None:
    start()
    job = new_job(placement="Colocated")
    job.until("Training")
    with pytest.raises(ClusterError, match="colocated engines sit on the learner's GPUs; suspend the job first"):
        kubectl("scale", "rljob/sums", "-n", job.namespace, "--replicas=1")


def test_a_pod_whose_engine_dies_again_and_again_is_swapped(
    new_job: Callable[..., Job], start: Callable, heads: FakeHeads
) -> None:
    start()
    job = new_job(training={"gpusPerNode": 1})
    job.until("EnginesReady")
    head, before = heads.head(job.namespace), rollout(job)
    (_, good), (name, bad) = sorted(before.items())
    engines_on(head, good, bad)
    well, ill = head.status.engines
    dead = ill.model_copy(update={"state": EngineState.DEAD, "generation": 3, "last_error": "Xid 79"})
    restarts = tuple(
        Decision(time=time.time(), step=3, engine=dead.name, generation=i, by="Supervisor", reason="Xid 79")
        for i in (1, 2, 3)
    )
    head.change(engines=(well, dead), decisions=restarts)
    after = eventually(lambda: rollout(job), lambda pods: len(pods) == 2 and name not in pods)
    assert len(after.keys() & before.keys()) == 1, "the other pod stays"
    (step,) = [each for each in job.raw()["status"]["recovery"] if each["action"] == "ReplacePod"]
    assert (step["target"], step["cause"]) == (f"pod {name}", "engine-1 died 4 times since step 3: Xid 79")
    assert "ReplacePod" in job.events()
    assert len(heads.submissions) == 1, "it was one run all the time"
