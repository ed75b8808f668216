"""The pods of a job's tools on a real node: the driver calls them, and code of a model does not get out.

Their image has no torch and no Ray, which their server does not need. The objects are the operator's. Escapes that need
no node are tried in `unit/trainer/conversations/test_pod_server.py`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from local_cluster.fixtures import temporary_namespace
from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.node import NodeCluster
from rljob_api.tool_protocol import DIGEST_VARIABLE, PORT, host, tools_token
from rljob_operator import children, tool_pods
from support.cluster.busybox import busybox_archive, pod
from support.cluster.python_image import CODE, IMAGE, python_archive
from support.operator.operator_world import DEFAULTS, admitted, raw_job
from support.trainer.escapes import attempt
from support.waiting import eventually

CLUSTER = "sums-7f3a1-1"
CONTROL_TOKEN = "of-the-control-protocol"  # of nothing
RAY = 6379
SERVE = f"mkdir /tmp/www; exec httpd -f -p {RAY} -h /tmp/www"
DRIVER = """
import json, sys
from rljob_api.sections import Tools
from rljob_trainer.conversations.tool_pods import ToolPod
given = json.load(sys.stdin)
pod = ToolPod((given["host"], given["port"]), given["token"], Tools(functions=("python",), memory_mib=256))
path = "rljob_trainer.tools.python:python"
print(json.dumps({name: pod.call(path, {"code": code}) for name, code in given["codes"].items()}))
"""
ONLY_ON_A_NODE = {
    "the digest of the token": f"os.environ[{DIGEST_VARIABLE!r}]",
    "a service account token": "open('/var/run/secrets/kubernetes.io/serviceaccount/token')",
    "the API server": "socket.create_connection((API, 443), 2)",
    "Ray of the job": f"socket.create_connection((RAY, {RAY}), 2)",
    "another pod of the tools": f"socket.create_connection((OTHER, {PORT}), 2)",
    "variables of Services": "assert [name for name in os.environ if 'SERVICE' in name], 'none'",
}


@dataclass(frozen=True)
class Place:
    kubectl: Kubectl
    namespace: str
    head: str
    other: str
    """addresses of pods"""

    def called(self, codes: dict[str, str], index: int = 0) -> dict[str, str]:
        """Return what a driver gets for each of these codes from a pod of the tools."""
        pool = "sums-7f3a1-1-tools.sums-7f3a1-tools"
        asked = {"host": host(pool, index), "port": PORT, "token": tools_token(CONTROL_TOKEN), "codes": codes}
        inside = ("exec", "-i", "driver", "-n", self.namespace, "--", "python", "-c", DRIVER)
        found: dict[str, str] = json.loads(self.kubectl(*inside, given=json.dumps(asked)))
        return found


def driver(namespace: str) -> Manifest:
    """Return a pod of the job in which a driver could run."""
    made = pod("driver", namespace, "")
    made["metadata"]["labels"]["rljob.dev/job"] = "sums"
    (container,) = made["spec"]["containers"]
    container |= {"image": IMAGE, "args": ["-c", "import time; time.sleep(600)"]}
    container["env"] = [{"name": "PYTHONPATH", "value": CODE}]
    return made


@pytest.fixture(scope="module")
def place(node_cluster: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if node_cluster.runtime is None:
        pytest.skip("KUBECONFIG names a cluster into which nobody here can load an image")
    kubectl = node_cluster.kubectl
    node_cluster.runtime.import_archive(busybox_archive(tmp_path_factory.mktemp("busybox")))
    node_cluster.runtime.import_archive(python_archive(tmp_path_factory.mktemp("python")))
    runtime = {"env": {"PYTHONPATH": CODE}, "imagePullPolicy": "Never"}
    raw = raw_job(rollout={"tools": {"functions": ["python"], "concurrency": 2, "memoryMib": 256}}, runtime=runtime)
    job = admitted(raw, replace(DEFAULTS, image=IMAGE))
    head = pod("head", "", SERVE)
    head["metadata"]["labels"]["rljob.dev/job"] = "sums"
    made = [children.secret(job, CONTROL_TOKEN), children.network_policy(job), *tool_pods.tool_children(job, CLUSTER)]
    with temporary_namespace(kubectl) as namespace:
        for each in (*made, head, driver(namespace)):
            # Without the owner: there is no such job, and the garbage collector would see that.
            metadata = {key: value for key, value in each["metadata"].items() if key != "ownerReferences"}
            kubectl.apply({**each, "metadata": {**metadata, "namespace": namespace}})
        names = ("sums-7f3a1-1-tools-0", "sums-7f3a1-1-tools-1", "head", "driver")
        for name in names:
            kubectl("wait", "--for=create", f"pod/{name}", "-n", namespace, "--timeout=60s")
            kubectl("wait", "--for=condition=Ready", f"pod/{name}", "-n", namespace, "--timeout=60s")
        address = {name: kubectl.get("pod", name, "-n", namespace)["status"]["podIP"] for name in names}
        yield Place(kubectl, namespace, address["head"], address["sums-7f3a1-1-tools-1"])


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
