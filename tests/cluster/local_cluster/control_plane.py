"""The control-plane profile: API server, controllers, simulated nodes and the real KubeRay operator, in seconds."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from local_cluster import api_server, controllers, kuberay, kwok
from local_cluster.api_server import ApiServer
from local_cluster.binaries import binary
from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.processes import Started, wait_ready

log = logging.getLogger(__name__)

PROGRAMS = (*api_server.PROGRAMS, "kubectl", *controllers.PROGRAMS, *kwok.PROGRAMS, *kuberay.PROGRAMS)
NODES_S = 60.0
"""for simulated nodes to get ready; 2 s most often [s]"""
StartOperator = Callable[[ApiServer, Kubectl, Mapping[str, str]], Started]
OUR_CRDS = sorted((Path(__file__).parents[3] / "crds").glob("*.yaml"))


def simulated(nodes: int) -> list[Manifest]:
    """Return this many simulated nodes of eight GPUs."""
    return [kwok.simulated_node(f"simulated-{number}") for number in range(nodes)]


def complete(
    server: ApiServer,
    environ: Mapping[str, str],
    nodes: Sequence[Manifest],
    operators: Sequence[StartOperator] = (kuberay.start_kuberay,),
) -> Kubectl:
    """Start everything but the API server; return when the nodes are ready and pods can be made.

    Without `operators` a RayCluster stays as it is until somebody starts KubeRay.
    """
    started = time.monotonic()
    kubectl = Kubectl(binary("kubectl", environ), server.kubeconfig)
    # Before the controllers: garbage collection looks for new kinds only every 30 s.
    crds = [*OUR_CRDS, kwok.crd(environ), *kuberay.crds(environ)]
    kubectl("apply", "--server-side", *(f"--filename={path}" for path in crds))
    kubectl.wait_for_crds()
    simulator = kwok.start_kwok(server, kubectl, environ)
    processes = [
        *controllers.start_controllers(server, environ),
        simulator,
        *(operator(server, kubectl, environ) for operator in operators),
    ]
    if nodes:
        kubectl.apply(*nodes)
    for process in processes:
        wait_ready(process)
    kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=60s")
    if nodes:
        # As a wait for the simulator, whose log says why they are not.
        wait_ready(replace(simulator, is_ready=lambda: _nodes_are_ready(kubectl)), NODES_S)
    log.info("action=ready profile=control-plane nodes=%d seconds=%.1f", len(nodes), time.monotonic() - started)
    return kubectl


def _nodes_are_ready(kubectl: Kubectl) -> bool:
    """Wait a while for the simulated nodes; if one is not ready then, remind the simulator and return False."""
    try:
        kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=10s")
    except ClusterError:
        kwok.remind(kubectl)
        return False
    return True
