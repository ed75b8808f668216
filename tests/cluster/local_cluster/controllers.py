"""The controller manager (garbage collection, namespaces, service accounts, Jobs ...) and the scheduler."""

from collections.abc import Mapping
from pathlib import Path

from local_cluster.api_server import ApiServer
from local_cluster.binaries import binary
from local_cluster.health import answers, unverified
from local_cluster.network import LOOPBACK
from local_cluster.ports import free_port
from local_cluster.processes import Started, start

PROGRAMS = ("kube-controller-manager", "kube-scheduler")


def start_controllers(api_server: ApiServer, environ: Mapping[str, str]) -> list[Started]:
    """Start both, each as the user that the server's own RBAC knows."""
    arguments = {
        "kube-controller-manager": controller_manager_arguments(api_server),
        "kube-scheduler": [],
    }
    return [_start(name, arguments[name], api_server, environ) for name in PROGRAMS]


def controller_manager_arguments(server: ApiServer) -> list[str]:
    """Return the arguments that only the controller manager has."""
    authority = server.authority.own
    return [
        f"--root-ca-file={authority.certificate}",
        f"--cluster-signing-cert-file={authority.certificate}",
        f"--cluster-signing-key-file={authority.key}",
        f"--service-account-private-key-file={server.service_accounts.key}",
        "--use-service-account-credentials=true",
        "--allocate-node-cidrs=true",
        f"--cluster-cidr={server.network.pods}",
        f"--service-cluster-ip-range={server.network.services}",
    ]


def client_arguments(kubeconfig: Path, port: int) -> list[str]:
    """Return the arguments that both have: one of each, on loopback, without the client's usual rate limit."""
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
        "--leader-elect=false",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


def _start(name: str, arguments: list[str], api_server: ApiServer, environ: Mapping[str, str]) -> Started:
    port = free_port()
    kubeconfig = api_server.kubeconfig_for(name, f"system:{name}")
    command = [str(binary(name, environ)), *client_arguments(kubeconfig, port), *arguments]
    context = unverified()
    return start(name, command, api_server.directory, lambda: answers(f"https://{LOOPBACK}:{port}/healthz", context))
