"""RLJobs train on GPUs in pods of one node or two, while engines, ranks and nodes die. `make e2e-gpu` runs them."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from local_cluster import faults
from local_cluster.kubectl import Kubectl
from local_cluster.node import is_ready
from local_cluster.node_cluster import NodeCluster
from local_cluster.project import Workspace
from support.operator.gpu_job import DENSE, DEVICE, DRIVER, ENGINE, EXPERTS, RANK, GpuJob, gpus_by_node

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1500)]

INTERVAL = 5
"""steps between checkpoints; a step takes one to two seconds"""


def over_all(kubectl: Kubectl) -> tuple[int, int]:
    """Return how many nodes there are, and how many GPUs each has at least."""
    gpus = gpus_by_node(kubectl)
    return len(gpus), min(gpus.values())


def colocated(kubectl: Kubectl, place: Workspace, name: str, model: Callable[..., object], **training: Any) -> GpuJob:
    """Apply a job with a rank and an engine on each GPU."""
    nodes, of_node = over_all(kubectl)
    return GpuJob(
        kubectl,
        place,
        name,
        model,
        placement="Colocated",
        rollout={"engines": nodes * of_node},
        training={"nodes": nodes, "gpusPerNode": of_node, **training},
        checkpoint={"interval": INTERVAL},
    )


def test_a_colocated_job_over_all_nodes_goes_on_after_an_engine_and_a_rank_are_killed(
    kubectl: Kubectl, place: Workspace
) -> None:
    nodes, of_node = over_all(kubectl)
    engines, steps = nodes * of_node, 60
    job = colocated(kubectl, place, "colocated", DENSE, steps=steps, tensorParallel=of_node)
    job.trains()
    assert job.nodes_of("workers") == set(gpus_by_node(kubectl))

    job.kill(ENGINE, "workers")
    job.goes_on_after("engine killed", lambda: bool(job.status.get("recovery")))
    job.until(lambda: job.status["engines"]["ready"] == engines)
    job.mark("to the engine's return")
    assert [done["action"] for done in job.status["recovery"]] == ["RestartEngine"]
    assert job.status["attempt"] == 1
    job.assert_telemetry_has(engines if DEVICE == "Gpu" else 0)

    job.kill(RANK, "workers")
    job.goes_on_after("rank killed", lambda: job.status["attempt"] > 1)
    job.succeed()
    job.mark("to Succeeded")
    job.assert_publications_were_verified(engines)
    job.assert_it_learned()
    job.assert_journal_is_exact(steps)


def test_a_job_with_experts_over_all_gpus_goes_on_after_its_driver_is_killed(
    kubectl: Kubectl, place: Workspace
) -> None:
    nodes, of_node = over_all(kubectl)
    gpus, steps = nodes * of_node, 30
    experts = {"expertParallel": gpus, "experts": {"replay": "Rollout"}}
    job = colocated(kubectl, place, "experts", EXPERTS, steps=steps, **experts)
    job.trains()

    job.kill(DRIVER, "headgroup")
    job.goes_on_after("driver killed", lambda: job.status["attempt"] > 1)
    job.succeed()
    job.mark("to Succeeded")
    job.assert_publications_were_verified(gpus)
    job.assert_it_learned()
    job.assert_journal_is_exact(steps)


def test_a_disaggregated_job_is_scaled_and_goes_on_after_a_node_lost_power(
    rljob: NodeCluster, kubectl: Kubectl, place: Workspace
) -> None:
    gpus = sum(gpus_by_node(kubectl).values())
    if len(rljob.nodes) < 2:
        pytest.skip("a GPU on each of two nodes is needed")
    steps = 120
    job = GpuJob(
        kubectl,
        place,
        "apart",
        placement="Disaggregated",
        rollout={"engines": 1},
        training={"gpusPerNode": 1, "steps": steps},
        checkpoint={"interval": INTERVAL},
    )
    job.trains()
    engines = min(2, gpus - 1)
    for wanted in range(2, engines + 1):
        job.scale(wanted)
        job.scale(1)  # what is left after the loss of a node has room for a rank and an engine

    lost = next(node for node in rljob.nodes if node.name == job.node_to_lose())
    (left,) = [node for node in rljob.nodes if node != lost]
    before = job.step
    faults.power_off(lost)
    job.mark(f"no power on {lost.name}, which has {', '.join(job.groups_on(lost.name))}")
    job.until(lambda: not is_ready(lost.name, kubectl), 120)
    job.mark("to not ready")
    if gpus_by_node(kubectl)[left.name] >= 2:
        job.until(lambda: job.phase == "Training" and job.step > before + 1 and job.is_all_on(left.name), 400)
        job.mark("to the next step on the other node")
    faults.power_on(lost, kubectl, os.environ)
    job.mark("power on")
    job.until(lambda: job.phase == "Training" and job.step > before + 1, 400)
    job.mark("to a step")
    job.succeed()
    job.mark("to Succeeded")
    job.assert_publications_were_verified(engines)
    job.assert_journal_is_exact(steps)
