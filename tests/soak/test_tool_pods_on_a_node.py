"""The pods of a job's tools on a real node: the driver calls them, and code of a model does not get out.

Escapes that need no node are tried in `unit/trainer/conversations/test_pod_server.py`.
"""

from collections.abc import Iterator

import pytest

from local_cluster.node_cluster import NodeCluster
from rljob_api.tool_protocol import DIGEST_VARIABLE, PORT
from support.operator.tools_on_a_node import RAY, Place, tools_on_a_node
from support.trainer.escapes import attempt
from support.waiting import eventually

ONLY_ON_A_NODE = {
    "the digest of the token": f"os.environ[{DIGEST_VARIABLE!r}]",
    "a service account token": "open('/var/run/secrets/kubernetes.io/serviceaccount/token')",
    "the API server": "socket.create_connection((API, 443), 2)",
    "Ray of the job": f"socket.create_connection((RAY, {RAY}), 2)",
    "another pod of the tools": f"socket.create_connection((OTHER, {PORT}), 2)",
    "variables of Services": "assert [name for name in os.environ if 'SERVICE' in name], 'none'",
}


@pytest.fixture(scope="module")
def place(node_cluster: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if not node_cluster.nodes:
        pytest.skip("KUBECONFIG names a cluster into which nobody here can load an image")
    with tools_on_a_node(node_cluster, tmp_path_factory.mktemp("images")) as found:
        yield found


def test_a_driver_calls_each_pod_by_its_name(place: Place) -> None:
    for index in range(2):
        said = place.called({"name": "import socket; print(socket.gethostname())"}, index)
        assert said == {"name": f"sums-7f3a1-1-tools-{index}"}


def test_code_of_a_model_does_not_get_out(place: Place) -> None:
    service = place.kubectl.get("service", "kubernetes", "-n", "default")["spec"]["clusterIP"]
    machine = {"RUN": "/rljob", "HOME": "/home/rljob", "DRIVER": 2, "PORT": PORT, "ABSTRACT": "\0x", "SHARED": "x"}
    machine |= {"API": service, "RAY": place.head, "OTHER": place.other}
    said = place.called({name: attempt(code, machine) for name, code in ONLY_ON_A_NODE.items()})
    assert {name: text for name, text in said.items() if not text.startswith("KEPT")} == {}
    assert len(said) == len(ONLY_ON_A_NODE)
    (status,) = place.kubectl.get("pod", "sums-7f3a1-1-tools-0", "-n", place.namespace)["status"]["containerStatuses"]
    assert status["restartCount"] == 0, "the server outlived all of it"


def test_a_pod_that_is_lost_comes_back_under_its_name(place: Place) -> None:
    place.kubectl("delete", "pod", "sums-7f3a1-1-tools-1", "-n", place.namespace, "--wait=true")

    def answered() -> bool:
        pod = place.kubectl("get", "pod", "sums-7f3a1-1-tools-1", "-n", place.namespace, "--ignore-not-found")
        return "1/1" in pod

    eventually(answered, bool, 60.0)
    assert place.called({"sum": "print(6 * 7)"}, 1) == {"sum": "42"}
