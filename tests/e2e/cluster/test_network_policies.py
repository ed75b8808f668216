"""Who reaches the pods of a job, and what they reach, with an engine that enforces the operator's NetworkPolicies.

Each connection that a policy forbids is made before there is a policy, and again after it has been removed: so it is
the policy that forbids it.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from local_cluster.fixtures import temporary_namespace
from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.node_cluster import NodeCluster
from rljob_operator.children import children, tool_pods
from rljob_operator.job.admitted_job import AdmittedJob
from support.cluster.busybox import pod
from support.cluster.python_image import IMAGE, python_archive
from support.operator.operator_world import DEFAULTS, admitted, raw_job
from support.waiting import eventually

RAY, CLIENT, DASHBOARD, CONTROL, METRICS, TOOLS, OTHER = 6379, 10001, 8265, 8643, 8644, 8645, 8080
HEAD_PORTS = (RAY, CLIENT, DASHBOARD, CONTROL, METRICS)
METADATA = "169.254.169.254"
"""where clouds give credentials to every process of a node that asks"""
SERVE = """
import selectors, socket, sys
doors = selectors.DefaultSelector()
for port in sys.argv[2:]:
    doors.register(socket.create_server((sys.argv[1], int(port))), selectors.EVENT_READ)
while True:
    for door, _ in doors.select():
        with door.fileobj.accept()[0] as visitor:
            try:
                visitor.sendall(b"served")
            except OSError:
                pass  # a probe that is gone
"""
ASK = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def reached(target):
    host, port, banner = target
    try:
        with socket.create_connection((host, port), 0.7) as connection:
            return not banner or connection.recv(6) == b"served"
    except OSError:
        return False
targets = json.load(sys.stdin)
with ThreadPoolExecutor(len(targets)) as pool:
    print(json.dumps(list(pool.map(reached, targets.values()))))
"""
ADD_ADDRESS = """
import fcntl, socket, struct
def interface(request, address):
    return struct.pack("16sHH4s8x", b"lo:9", socket.AF_INET, 0, socket.inet_aton(address))
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8916, interface("SIOCSIFADDR", {address!r}))
    fcntl.ioctl(any_socket, 0x891C, interface("SIOCSIFNETMASK", "255.255.255.255"))
"""
OF_JOB = {"rljob.dev/job": "sums"}
OPERATOR = {"app.kubernetes.io/name": "rljob-operator"}


@dataclass(frozen=True)
class Place:
    """Namespaces with pods, each of which serves and asks."""

    kubectl: Kubectl
    job: str
    operator: str
    namespaces: dict[str, str]
    addresses: dict[str, str]
    """namespace and IP by name of the pod"""

    def reached(self, name: str) -> set[str]:
        """Return what a pod reaches, as `POD:PORT`, the metadata address and the API server; never itself."""
        served = {"head": HEAD_PORTS, "tools": (TOOLS, OTHER), "rival": (RAY,), "stranger": (OTHER,)}
        targets: dict[str, tuple[str, int, bool]] = {
            f"{pod}:{port}": (self.addresses[pod], port, True)
            for pod, ports in served.items()
            for port in ports
            if pod != name
        }
        service = self.kubectl.get("service", "kubernetes", "-n", "default")["spec"]["clusterIP"]
        targets |= {"metadata": (METADATA, 80, True), "api": (service, 443, False)}
        inside = ("exec", "-i", name, "-n", self.namespaces[name], "--", "python", "-c", ASK)
        answers = json.loads(self.kubectl(*inside, given=json.dumps(targets)))
        return {shown for shown, is_reached in zip(targets, answers, strict=True) if is_reached}

    def policies(self, job: AdmittedJob) -> list[Manifest]:
        """Return the policies without the owner: there is no such job, and the garbage collector would see that."""
        made = (children.network_policy(job), tool_pods.network_policy(job))
        metadata = [{k: v for k, v in each["metadata"].items() if k != "ownerReferences"} for each in made]
        return [
            {**each, "metadata": {**kept, "namespace": self.job}} for each, kept in zip(made, metadata, strict=True)
        ]

    def apply(self, job: AdmittedJob) -> None:
        self.kubectl.apply(*self.policies(job))


def serving(name: str, namespace: str, labels: dict[str, str], *ports: int) -> Manifest:
    made = pod(name, namespace, "")
    made["metadata"]["labels"] |= labels
    (container,) = made["spec"]["containers"]
    container |= {"image": IMAGE, "args": ["-c", SERVE, "0.0.0.0", *map(str, ports)]}
    return made


def metadata_server(namespace: str) -> Manifest:
    """Return a pod in the node's network that adds the address of a cloud's metadata to the node, and serves there."""
    made = pod("metadata", namespace, "")
    made["spec"] |= {"hostNetwork": True, "securityContext": {"runAsUser": 0}}
    (container,) = made["spec"]["containers"]
    code = ADD_ADDRESS.format(address=METADATA) + SERVE
    rights = {"capabilities": {"add": ["NET_ADMIN"]}}
    container |= {"image": IMAGE, "args": ["-c", code, METADATA, "80"], "securityContext": rights}
    return made


@pytest.fixture
def place(node_cluster: NodeCluster, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    assert node_cluster.nodes
    node_cluster.import_archive(python_archive(tmp_path_factory.mktemp("python")))
    with ExitStack() as stack:
        job, operator, elsewhere, of_node = (stack.enter_context(temporary_namespace(kubectl)) for _ in range(4))
        kubectl("label", "namespace", of_node, "pod-security.kubernetes.io/enforce=privileged", "--overwrite")
        kubectl("label", "namespace", elsewhere, "team=monitoring")
        pods = [
            metadata_server(of_node),
            serving("head", job, {**OF_JOB, "ray.io/node-type": "head"}, *HEAD_PORTS),
            serving("worker", job, OF_JOB, OTHER),
            serving("tools", job, {**OF_JOB, "rljob.dev/tools": "sums-7f3a1-1"}, TOOLS, OTHER),
            serving("rival", job, {"rljob.dev/job": "other", "ray.io/node-type": "head"}, RAY),
            serving("operator", operator, OPERATOR, OTHER),
            serving("impostor", elsewhere, OPERATOR, OTHER),
            serving("stranger", elsewhere, {}, OTHER),
        ]
        kubectl.apply(*pods)
        namespaces = {each["metadata"]["name"]: each["metadata"]["namespace"] for each in pods}
        addresses = {}
        for name, namespace in namespaces.items():
            kubectl("wait", "--for=condition=Ready", f"pod/{name}", "-n", namespace, "--timeout=60s")
            addresses[name] = kubectl.get("pod", name, "-n", namespace)["status"]["podIP"]
        yield Place(kubectl, job, operator, namespaces, addresses)


OF_HEAD = {f"head:{port}" for port in HEAD_PORTS}
OUTSIDE = {"rival:6379", "stranger:8080", "metadata", "api"}
EVERYTHING = OF_HEAD | {"tools:8645", "tools:8080"} | OUTSIDE
CLIENTS = ("worker", "tools", "rival", "operator", "impostor", "stranger")


def unlimited(name: str) -> set[str]:
    return {each for each in EVERYTHING if not each.startswith(f"{name}:")}


def outside(name: str) -> set[str]:
    return OUTSIDE & unlimited(name)


def given(job: AdmittedJob, **defaults: Any) -> AdmittedJob:
    """Return the job with these defaults of the operator."""
    return replace(job, defaults=replace(job.defaults, **defaults))


def test_the_policies_of_a_job_hold_when_somebody_tries(place: Place) -> None:
    assert {name: place.reached(name) for name in CLIENTS} == {name: unlimited(name) for name in CLIENTS}

    raw = raw_job(rollout={"tools": {"functions": ["python"]}})
    job = admitted(raw, replace(DEFAULTS, operator_namespace=place.operator))
    place.apply(job)
    eventually(lambda: place.reached("impostor"), lambda found: found == outside("impostor"))
    eventually(lambda: place.reached("tools"), lambda found: found == set())
    assert place.reached("rival") == outside("rival")
    assert place.reached("stranger") == outside("stranger")
    assert place.reached("operator") == {f"head:{DASHBOARD}", f"head:{CONTROL}"} | OUTSIDE
    assert place.reached("worker") == OF_HEAD | {f"tools:{TOOLS}"} | OUTSIDE

    place.apply(given(job, scrapers={"team": "monitoring"}))
    eventually(lambda: place.reached("stranger"), lambda found: found == {f"head:{METRICS}"} | outside("stranger"))

    own = OF_HEAD | {f"tools:{TOOLS}"}
    place.apply(given(job, egress=()))
    eventually(lambda: place.reached("worker"), lambda found: found == own)
    block = {"to": [{"ipBlock": {"cidr": f"{place.addresses['stranger']}/32"}}]}
    place.apply(given(job, egress=(block,)))
    eventually(lambda: place.reached("worker"), lambda found: found == own | {"stranger:8080"})

    place.kubectl("delete", "networkpolicy", "--all", "-n", place.job)
    for name in CLIENTS:
        eventually(lambda name=name: place.reached(name), lambda found, name=name: found == unlimited(name))
