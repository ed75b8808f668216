"""The API server is away for more than a minute: what is well stays untouched, and all goes on when it is back."""

import json
import os
import time
from collections.abc import Callable, Iterator

import pytest

from local_cluster import control_plane, home
from local_cluster.api_server import ApiServer, start_api_server, start_api_server_again, stop_api_server
from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl
from support.operator.fake_head import FakeHeads
from support.operator.kept_alive import kept_alive
from support.operator.operator_job import Job
from support.operator.webhook_process import WebhookProcess
from support.waiting import eventually

OUTAGE_S = 65.0
"""longer than the Lease, than a head may be silent, than a node's heartbeat, and than kubectl's patience [s]"""


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """An API server of this module's own, which it may break."""
    if "KUBECONFIG" in os.environ:
        pytest.skip("KUBECONFIG names a cluster whose API server nobody here can stop")
    with home.owned_directory(home.clusters_of_this_user()) as directory:
        yield start_api_server(directory, os.environ)


@pytest.fixture(scope="module")
def kubectl(server: ApiServer) -> Kubectl:
    return control_plane.complete(server, os.environ, control_plane.simulated(2))


@pytest.mark.timeout(900)
def test_an_outage_of_the_api_server_restarts_nothing(
    kubectl: Kubectl,
    server: ApiServer,
    new_job: Callable[..., Job],
    start: Callable,
    heads: FakeHeads,
    webhook: WebhookProcess,
) -> None:
    with kept_alive(lambda number: start(f"operator-{number}", identity="replica")) as lives:
        job = new_job()
        before = job.until("Training")
        pods = living(job)
        stop_api_server(server)
        head = heads.head(job.namespace)
        head.change(progress=head.status.progress.model_copy(update={"step": 4}))
        time.sleep(OUTAGE_S)
        start_api_server_again(server)
        eventually(lambda: job.raw()["status"]["progress"]["step"], lambda step: step == 4, deadline_s=120)
        heartbeat(kubectl, job)
        eventually(lambda: job.conditions()["ClusterReady"], lambda ready: ready == "True", deadline_s=120)
        new_job("later").until("Training", deadline_s=180)
        with pytest.raises(ClusterError, match=r"nearest valid: spec\.extraArgs.sglang\.mem-fraction-static"):
            new_job("misspelled", extraArgs={"sglang": {"mem-fraction-statics": 0.5}})
    after = job.raw()["status"]
    assert living(job) == pods
    assert [name.rpartition("-attempt-")[2] for name in heads.submissions] == ["1", "1"]
    assert (head.drains, head.status.decisions) == (0, ())
    assert after["attempts"] == before["attempts"]
    assert "recovery" not in after or after["recovery"] == []
    assert since(after, "Training") == since(before, "Training")
    assert lives.count <= 4


def heartbeat(kubectl: Kubectl, job: Job) -> None:
    """Say again that the pods are ready, as a kubelet does and kwok does not.

    The controller manager says that pods are not, when their nodes have not reported for 50 s.
    """
    kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")
    ready = json.dumps({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    for pod in job.pods():
        name = pod["metadata"]["name"]
        kubectl("patch", "pod", name, "-n", job.namespace, "--subresource=status", "-p", ready)


def living(job: Job) -> dict[str, tuple[str, int]]:
    """Return uid and restarts of each pod of a job."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sum(container["restartCount"] for container in pod["status"]["containerStatuses"]),
        )
        for pod in job.pods()
    }


def since(status: dict, kind: str) -> str:
    return next(each["lastTransitionTime"] for each in status["conditions"] if each["type"] == kind)
