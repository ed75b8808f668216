"""Pods of a job's tools on a real node, and a pod in which a driver could run. The objects are the operator's.

The image has no torch and no Ray, which the server in the pods does not need.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from local_cluster.fixtures import temporary_namespace
from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.node_cluster import NodeCluster
from rljob_api.tool_protocol import PORT, host, tools_token
from rljob_operator.children import children, tool_pods
from rljob_operator.identity import ClusterRef
from support.cluster.busybox import busybox_archive, pod
from support.cluster.python_image import CODE, IMAGE, python_archive
from support.operator.operator_world import DEFAULTS, admitted, raw_job

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
POOL = "sums-7f3a1-1-tools.sums-7f3a1-tools"
PODS = 2


@dataclass(frozen=True)
class Place:
    kubectl: Kubectl
    namespace: str
    head: str
    other: str
    """addresses of pods"""

    def called(self, codes: dict[str, str], index: int = 0) -> dict[str, str]:
        """Return what a driver gets for each of these codes from a pod of the tools."""
        asked = {"host": host(POOL, index), "port": PORT, "token": tools_token(CONTROL_TOKEN), "codes": codes}
        found: dict[str, str] = self.run_in_driver(DRIVER, asked)
        return found

    def run_in_driver(self, program: str, given: object) -> Any:
        """Return what a program prints in the driver's pod, as JSON; it reads `given` from its standard input."""
        inside = ("exec", "-i", "driver", "-n", self.namespace, "--", "python", "-c", program)
        return json.loads(self.kubectl(*inside, given=json.dumps(given)))


def driver(namespace: str) -> Manifest:
    """Return a pod of the job in which a driver could run."""
    made = pod("driver", namespace, "")
    made["metadata"]["labels"]["rljob.dev/job"] = "sums"
    (container,) = made["spec"]["containers"]
    container |= {"image": IMAGE, "args": ["-c", "import time; time.sleep(600)"]}
    container["env"] = [{"name": "PYTHONPATH", "value": CODE}]
    return made


@contextmanager
def tools_on_a_node(cluster: NodeCluster, directory: Path) -> Iterator[Place]:
    """Start the pods; `directory` is for the archives of images."""
    assert cluster.nodes
    kubectl = cluster.kubectl
    for write in (busybox_archive, python_archive):
        cluster.import_archive(write(directory))
    runtime = {"env": {"PYTHONPATH": CODE}, "imagePullPolicy": "Never"}
    raw = raw_job(rollout={"tools": {"functions": ["python"], "concurrency": PODS, "memoryMib": 256}}, runtime=runtime)
    job = admitted(raw, replace(DEFAULTS, image=IMAGE))
    head = pod("head", "", SERVE)
    head["metadata"]["labels"]["rljob.dev/job"] = "sums"
    tools = tool_pods.tool_children(job, ClusterRef(CLUSTER))
    made = [children.secret(job, CONTROL_TOKEN), children.network_policy(job), *tools]
    with temporary_namespace(kubectl) as namespace:
        for each in (*made, head, driver(namespace)):
            # Without the owner: there is no such job, and the garbage collector would see that.
            metadata = {key: value for key, value in each["metadata"].items() if key != "ownerReferences"}
            kubectl.apply({**each, "metadata": {**metadata, "namespace": namespace}})
        names = (*(f"{CLUSTER}-tools-{index}" for index in range(PODS)), "head", "driver")
        for name in names:
            kubectl("wait", "--for=create", f"pod/{name}", "-n", namespace, "--timeout=60s")
            kubectl("wait", "--for=condition=Ready", f"pod/{name}", "-n", namespace, "--timeout=60s")
        address = {name: kubectl.get("pod", name, "-n", namespace)["status"]["podIP"] for name in names}
        yield Place(kubectl, namespace, address["head"], address[f"{CLUSTER}-tools-1"])
