"""The queue on a real API server with the real KubeRay: jobs wait until all their pods have room."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local_cluster.kubectl import Kubectl
from local_cluster.kwok import simulated_node
from support.operator.fake_head import FakeHeads, serving
from support.operator.operator_process import OperatorProcess, install_rights, kubeconfig_of_operator
from support.operator.queue_fleet import ShortLivedHeads, Watches, apply_at_once, fleet, out_of_order, quota
from support.waiting import eventually

GPUS = 16
JOBS = 16


@pytest.fixture
def heads(request: pytest.FixtureRequest) -> FakeHeads:
    return ShortLivedHeads(life_s=0.5)


def test_jobs_for_few_gpus_run_one_after_the_other_while_the_operator_is_killed(
    kubectl: Kubectl, namespace: str, start: Callable
) -> None:
    kubectl.apply(quota(namespace, GPUS))
    watches = Watches(kubectl, namespace)
    operator = start()
    try:
        apply_at_once(kubectl, namespace, fleet(JOBS))
        for kills, ended in enumerate((3, 7, 11)):
            eventually(lambda: len(watches.seen.ended), lambda count, ended=ended: count >= ended, 120)
            operator.kill()
            operator = start(f"operator-{kills}")
        eventually(lambda: len(watches.seen.ended), lambda count: count == JOBS, 180)
    finally:
        watches.close()
    seen = watches.seen
    assert seen.most_gpus_of_pods <= GPUS
    assert seen.most_gpus_held <= GPUS
    assert seen.most_gpus_held > GPUS // 2, "jobs run beside each other"
    assert out_of_order(seen) == []
    assert seen.longest_partial_s < 10


GANG = {
    "placement": "Colocated",
    "runtime": {"device": "Gpu"},
    "rollout": {"engines": 8},
    "training": {"gpusPerNode": 4, "nodes": 2},
}
"""pods on two nodes with four GPUs each"""
FOUR = {**GANG, "rollout": {"engines": 4}, "training": {"gpusPerNode": 4}}


def test_a_new_operator_takes_over_running_jobs_and_a_lowered_quota_disturbs_nobody(
    kubectl: Kubectl, namespace: str, start: Callable, new_job: Callable, heads: ShortLivedHeads
) -> None:
    heads.life_s = 3600
    kubectl.apply(quota(namespace, 4))
    old = start(more=("--queue=Off",))
    first = new_job("first", **FOUR)
    assert "queue" not in first.until("Training")
    pods = {pod["metadata"]["uid"] for pod in first.pods()}
    old.kill()
    start("new")
    second = new_job("second", **FOUR)
    second.until("QuotaReserved", "False")
    status = second.raw()["status"]
    (ready,) = [each for each in status["conditions"] if each["type"] == "Ready"]
    text = "needs 4 × nvidia.com/gpu; ResourceQuota gpus leaves 0 × nvidia.com/gpu; 4 × nvidia.com/gpu are in use"
    assert (status["phase"], status["queue"]["position"]) == ("Queued", 1)
    assert ready["message"] == f"position 1 in the queue: {text}"
    assert second.pods() == []
    first.until("QuotaReserved")

    kubectl.apply(quota(namespace, 2))
    eventually(lambda: second.raw()["status"]["conditions"], lambda found: "NeverFits" in str(found), 60)
    assert first.raw()["status"]["phase"] == "Training"
    assert {pod["metadata"]["uid"] for pod in first.pods()} == pods
    kubectl.apply(quota(namespace, 4))
    heads.head(namespace, "first").end(0)
    second.until("Training")


@pytest.fixture
def pool(kubectl: Kubectl, namespace: str) -> Iterator[dict[str, object]]:
    """Two nodes with four GPUs each, and the scheduling of jobs that may only run there."""
    nodes = [simulated_node(f"{namespace}-{number}", gpus=4) for number in range(2)]
    for node in nodes:
        node["metadata"]["labels"]["pool"] = namespace
        kubectl.apply(node)
    yield {"nodeSelector": {"pool": namespace}}
    kubectl("delete", "node", *(node["metadata"]["name"] for node in nodes), "--wait=false")


@pytest.fixture
def urgent(kubectl: Kubectl, namespace: str) -> Iterator[str]:
    """A PriorityClass."""
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    kubectl.apply({**kind, "metadata": {"name": namespace}, "value": 1000})
    yield namespace
    kubectl("delete", "priorityclass", namespace, "--wait=false")


def test_two_gangs_never_hold_half_of_the_nodes_each_and_an_urgent_one_comes_first(
    kubectl: Kubectl,
    namespace: str,
    new_job: Callable,
    heads: ShortLivedHeads,
    pool: dict[str, object],
    urgent: str,
    tmp_path: Path,
) -> None:
    heads.life_s = 3600
    install_rights(kubectl, namespace)
    kubeconfig = kubeconfig_of_operator(kubectl, namespace, tmp_path)
    of_all = {"more": ("--autoscaler=[]",), "watches_all": True}
    jobs = [new_job(name, **GANG, scheduling=pool) for name in ("a", "b")]
    with (
        serving(heads) as url,
        OperatorProcess(kubeconfig, namespace, url, tmp_path / "all.log", **of_all),  # type: ignore[arg-type]
    ):
        eventually(
            lambda: sorted(job.raw().get("status", {}).get("phase", "") for job in jobs),
            lambda phases: phases == ["Queued", "Training"],
            90,
        )
        first, second = sorted(jobs, key=lambda job: job.raw()["status"]["phase"], reverse=True)
        assert second.pods() == []
        assert "matching nodes have 0 × nvidia.com/gpu free" in str(second.raw()["status"]["conditions"])

        last = new_job("c", **GANG, scheduling={**pool, "priorityClassName": urgent})
        last.until("Training")
        assert [each.raw()["status"]["phase"] for each in (first, second)] == ["Queued", "Queued"]
        assert heads.head(namespace, first.name).drains == 1, "it has saved"
        assert first.pods() == second.pods() == []
        (attempt,) = first.raw()["status"]["attempts"]
        assert (attempt["cause"], first.raw()["status"]["restarts"]) == ("Suspended", 0)

        heads.head(namespace, "c").end(0)
        first.until("Training")
        assert first.raw()["status"]["attempt"] == 2
        assert second.raw()["status"]["phase"] == "Queued"
