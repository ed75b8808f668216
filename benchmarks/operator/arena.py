"""The control-plane profile, fresh for each measurement, with the operator's rights and without KubeRay at first.

Everything runs on the machine's own cores: whatever the API server, etcd and the controllers take is missing elsewhere.
`Shares` measures how much each of them took.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from local_cluster import control_plane, home, kuberay, kueue
from local_cluster.api_server import ApiServer, start_api_server
from local_cluster.kubectl import Kubectl
from local_cluster.kwok import simulated_node
from local_cluster.processes import find, wait_ready
from support.operator.operator_process import MODULE, OperatorProcess, install_rights, kubeconfig_of_operator
from support.operator.python_programs import spawned

NAMESPACE = "fleet"
NO_HEADS = "http://127.0.0.1:9/{namespace}/{service}"
"""nobody listens: jobs whose pods are never made"""
PODS_OF_NODE = 110
POD = "operator-0"
"""the operator's pod: a container that is killed starts again in it, and still has the Lease"""


@dataclass(frozen=True)
class Arena:
    """A running cluster."""

    server: ApiServer
    kubectl: Kubectl
    kubeconfig: Path
    """of the operator's ServiceAccount"""
    sees_nodes: bool = False
    """whether the operator watches all namespaces, and so sees nodes"""
    has_kueue: bool = False
    """whether jobs may name a queue of Kueue"""

    @contextmanager
    def operator(self, heads: str = NO_HEADS, profile: Path | None = None) -> Iterator[OperatorProcess]:
        """Run the operator as the chart would; `profile`: a file for cProfile."""
        program = MODULE if profile is None else ("-m", "cProfile", "-o", str(profile), *MODULE)
        log = self.server.directory / "logs" / "operator.log"
        more = (*(["--autoscaler=[]"] if self.sees_nodes else []), *(["--kueue"] if self.has_kueue else []))
        with OperatorProcess(
            self.kubeconfig,
            NAMESPACE,
            heads,
            log,
            program,
            identity=POD,
            log_level="INFO",
            more=more,
            watches_all=self.sees_nodes,
            start=spawned,
        ) as process:
            yield process
            if profile is not None:
                process.terminate()

    def start_kuberay(self) -> None:
        """Start KubeRay as it comes: one reconcile at a time, 100 requests per second."""
        wait_ready(kuberay.start_kuberay(self.server, self.kubectl, os.environ))

    def start_kueue(self) -> None:
        """Start Kueue, after KubeRay."""
        wait_ready(kueue.start_kueue(self.server, self.kubectl, os.environ))


@contextmanager
def arena(pods: int, nodes_with_gpus: int = 0, gpus: int = 0, has_kueue: bool = False) -> Iterator[Arena]:
    """Start a cluster whose simulated nodes hold this many pods; remove it at the end.

    It has so many nodes with GPUs besides, and then the operator sees nodes. `has_kueue`: the operator has the rights
    for Kueue, which is to be started.
    """
    clusters = home.clusters_of_this_user()
    home.remove_orphans(clusters)
    with home.owned_directory(clusters) as directory:
        server = start_api_server(directory, os.environ)
        nodes = [simulated_node(f"simulated-{number}", gpus=0) for number in range(pods // PODS_OF_NODE + 1)]
        nodes += [simulated_node(f"simulated-gpus-{number}", gpus=gpus) for number in range(nodes_with_gpus)]
        kubectl = control_plane.complete(server, os.environ, nodes, operators=())
        kubectl("create", "namespace", NAMESPACE)
        values = [] if nodes_with_gpus else ["--set", f"namespaces={{{NAMESPACE}}}"]
        install_rights(kubectl, NAMESPACE, *values, f"--set=kueue.enabled={str(has_kueue).lower()}")
        kubeconfig = kubeconfig_of_operator(kubectl, NAMESPACE, directory)
        yield Arena(server, kubectl, kubeconfig, sees_nodes=nodes_with_gpus > 0, has_kueue=has_kueue)


class Shares:
    """Processor seconds of each program since this was made."""

    def __init__(self, arena: Arena, others: Mapping[str, int]) -> None:
        """`others`: pids of programs that are not the cluster's."""
        self._arena = arena
        self._others = others
        self._before = self._now()

    def seconds(self) -> dict[str, float]:
        """Return the seconds by program."""
        now = self._now()
        return {name: now[name] - self._before.get(name, 0.0) for name in now}

    def _now(self) -> dict[str, float]:
        named = [(process.name(), process) for process in find(self._arena.server.directory)]
        named += [(name, psutil.Process(pid)) for name, pid in self._others.items()]
        found: dict[str, float] = {}
        for name, process in named:
            times = process.cpu_times()
            found[name] = found.get(name, 0.0) + times.user + times.system
        return found
