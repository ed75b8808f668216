"""pytest's view of the cluster: one for a session, removed with it. With KUBECONFIG set, that cluster is used as it is.

`tests/conftest.py` loads this module as a plugin.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local_cluster import agent_sandbox, home, kueue, machine_image
from local_cluster import control_plane as profile
from local_cluster.api_server import PROGRAMS, ApiServer, start_api_server
from local_cluster.binaries import binary
from local_cluster.errors import ClusterError
from local_cluster.hardware import Hardware
from local_cluster.kubectl import Kubectl
from local_cluster.node_cluster import PROGRAMS as NODE_PROGRAMS
from local_cluster.node_cluster import NodeCluster, cluster_of, start_cluster
from local_cluster.processes import wait_ready

GIVEN_VARIABLE = "KUBECONFIG"
NODE_FIXTURES = {"node_cluster", "two_nodes", "gpu_nodes"}
PROGRAM_FIXTURES = {"prometheus", "promtool", "versitygw"}
"""fixtures of these names are the programs"""
JUDGE_FIXTURE = "gitops_judge"
OF_FIXTURES = {
    "kueue_ready": kueue.PROGRAMS,
    "agent_sandbox_ready": agent_sandbox.PROGRAMS,
    "agent_sandbox_on_node": agent_sandbox.PROGRAMS,
}
"""programs that a fixture adds to a cluster"""
NEEDED_CRDS = ("rayclusters.ray.io", "stages.kwok.x-k8s.io")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the collected tests need, before the first of them starts its clock."""
    wanted = {fixture for item in session.items for fixture in getattr(item, "fixturenames", ())}
    if session.config.option.collectonly:
        return
    cluster = () if os.environ.get(GIVEN_VARIABLE) else programs_for(wanted)
    for name in (*cluster, *sorted(wanted & PROGRAM_FIXTURES)):
        binary(name, os.environ)


def programs_for(fixtures: set[str]) -> tuple[str, ...]:
    """Return the programs that tests with these fixtures need."""
    judges = ("gitops",) if JUDGE_FIXTURE in fixtures else ()
    more = (name for fixture, programs in OF_FIXTURES.items() if fixture in fixtures for name in programs)
    if NODE_FIXTURES & fixtures:
        return (*NODE_PROGRAMS, *judges, *more)
    if "kubectl" in fixtures:
        return (*profile.PROGRAMS, "helm", *judges, *more)
    return (*PROGRAMS, "kubectl", *judges) if "api_server" in fixtures else judges


@pytest.fixture(scope="session")
def kubectl_program() -> Path:
    """A kubectl that fits the server: built from the same module, or the one on PATH for a cluster that was given."""
    if not os.environ.get(GIVEN_VARIABLE):
        return binary("kubectl", os.environ)
    found = shutil.which("kubectl")
    if found is None:
        raise ClusterError(f"{GIVEN_VARIABLE} is set, but there is no kubectl on PATH to use that cluster with")
    return Path(found)


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """The program."""
    return binary("prometheus", os.environ)


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The program."""
    return binary("promtool", os.environ)


@pytest.fixture(scope="session")
def versitygw() -> Path:
    """The program: an S3 server on a directory."""
    return binary("versitygw", os.environ)


@pytest.fixture(scope="session")
def started_api_server() -> Iterator[ApiServer | None]:
    """The API server that this session starts; None if it was given one."""
    if os.environ.get(GIVEN_VARIABLE):
        yield None
        return
    clusters = home.clusters_of_this_user()
    home.remove_orphans(clusters)
    with home.owned_directory(clusters) as directory:
        yield start_api_server(directory, os.environ)


@pytest.fixture(scope="session")
def api_server(started_api_server: ApiServer | None) -> Path:
    """An administrator's kubeconfig of an API server that may have nothing around it: it judges, and nothing acts."""
    return started_api_server.kubeconfig if started_api_server else Path(os.environ[GIVEN_VARIABLE])


@pytest.fixture(scope="session")
def kubectl(started_api_server: ApiServer | None, kubectl_program: Path) -> Kubectl:
    """An administrator's kubectl of a cluster with controllers, scheduler, simulated nodes and KubeRay."""
    if started_api_server:
        return profile.complete(started_api_server, os.environ, profile.simulated(2))
    return _checked(Kubectl(kubectl_program, Path(os.environ[GIVEN_VARIABLE])))


@pytest.fixture(scope="session")
def kueue_ready(started_api_server: ApiServer | None, kubectl: Kubectl) -> None:
    """Kueue, in the cluster of `kubectl`: from now on it looks at each RayCluster that names a queue."""
    if started_api_server:
        wait_ready(kueue.start_kueue(started_api_server, kubectl, os.environ))
    elif "workloads.kueue.x-k8s.io" not in kubectl.names("crd"):
        pytest.skip(f"the cluster of {GIVEN_VARIABLE} has no Kueue")


@pytest.fixture(scope="session")
def agent_sandbox_ready(started_api_server: ApiServer | None, kubectl: Kubectl) -> None:
    """agent-sandbox, in the cluster of `kubectl`: from now on Sandboxes are served, and get pods."""
    if started_api_server:
        wait_ready(agent_sandbox.start_agent_sandbox(started_api_server, kubectl, os.environ))
    elif agent_sandbox.CRD not in kubectl.names("crd"):
        pytest.skip(f"the cluster of {GIVEN_VARIABLE} has no agent-sandbox")


@pytest.fixture(scope="session")
def control_plane(kubectl: Kubectl) -> Path:
    """An administrator's kubeconfig of the cluster of `kubectl`."""
    return kubectl.kubeconfig


@pytest.fixture(scope="session")
def node_cluster(kubectl_program: Path) -> Iterator[NodeCluster]:
    """A cluster with two real nodes, or the one that was given: kubelets and container runtimes, eight GPUs each."""
    with _real_nodes(kubectl_program, 2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def two_nodes(node_cluster: NodeCluster) -> NodeCluster:
    """The same, if it has two nodes to which `local_cluster.faults` may happen."""
    if len(node_cluster.nodes) < 2:
        pytest.skip(f"the cluster of {GIVEN_VARIABLE} does not have two nodes that were started here")
    return node_cluster


@pytest.fixture(scope="session")
def gpu_nodes(kubectl_program: Path) -> Iterator[NodeCluster]:
    """A cluster with two nodes, over which the GPUs of this machine are divided; with one node if there is one GPU."""
    nodes = min(2, len(machine_image.gpus(os.environ)))
    with _real_nodes(kubectl_program, nodes, lambda: machine_image.hardware(os.environ, nodes)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def agent_sandbox_on_node(node_cluster: NodeCluster) -> None:
    """agent-sandbox, in the cluster with a real node; its controller runs beside the node."""
    if node_cluster.server is None:
        pytest.skip(f"the cluster of {GIVEN_VARIABLE} gets no controller from here")
    wait_ready(agent_sandbox.start_agent_sandbox(node_cluster.server, node_cluster.kubectl, os.environ))


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace for one test; what is in it goes when the test ends."""
    with temporary_namespace(kubectl) as name:
        yield name


@contextmanager
def temporary_namespace(kubectl: Kubectl) -> Iterator[str]:
    """Yield the name of a new namespace; what is in it goes with it, and nobody waits for that.

    It enforces the Pod Security Standard `restricted`, as the namespaces of careful users do.
    """
    name = f"test-{uuid.uuid4().hex[:8]}"
    kubectl.make_namespace(name)
    try:
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


@contextmanager
def _real_nodes(
    kubectl_program: Path, nodes: int, hardware: Callable[[], Hardware] = Hardware
) -> Iterator[NodeCluster]:
    if given := os.environ.get(GIVEN_VARIABLE):
        yield cluster_of(_checked(Kubectl(kubectl_program, Path(given))))
        return
    clusters = home.clusters_of_this_user()
    home.remove_orphans(clusters)
    with home.owned_directory(clusters) as directory:
        yield start_cluster(directory, os.environ, nodes, hardware())


def _checked(kubectl: Kubectl) -> Kubectl:
    missing = sorted(set(NEEDED_CRDS) - set(kubectl.names("crd")))
    if missing:
        raise ClusterError(
            f"the cluster of {GIVEN_VARIABLE}={kubectl.kubeconfig} has no CRD {', '.join(missing)}; "
            f"install KubeRay and kwok there, or unset {GIVEN_VARIABLE} to have a cluster started"
        )
    return kubectl
