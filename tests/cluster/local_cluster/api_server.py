"""A real etcd and a real kube-apiserver: enough to judge manifests, CRDs, admission, RBAC and watches."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from local_cluster.binaries import binary
from local_cluster.certificates import Authority, Certificate
from local_cluster.health import answers, trusting
from local_cluster.kubeconfig import path_of, write_kubeconfig
from local_cluster.network import LOOPBACK, SIMULATED, Network
from local_cluster.ports import free_port
from local_cluster.processes import Started, start, wait_ready

log = logging.getLogger(__name__)

PROGRAMS = ("etcd", "kube-apiserver")
# A quarter less work while KubeRay's CRDs, a megabyte each, are taken in; the heap is small.
VARIABLES = {"GOGC": "300"}
SERVER_NAMES = ("localhost", *(f"kubernetes{suffix}" for suffix in ("", ".default", ".default.svc")))


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A running API server: where it is, and how to become anybody on it."""

    directory: Path
    """of the cluster: everything it writes is here"""
    network: Network
    url: str
    authority: Authority
    service_accounts: Certificate
    """signs their tokens"""
    kubeconfig: Path
    """of an administrator"""
    process: Started

    def kubeconfig_for(self, name: str, user: str, groups: Sequence[str] = ()) -> Path:
        """Write and return a kubeconfig for this user, for example `system:serviceaccount:NAMESPACE:NAME`."""
        client = self.authority.client(name, user, groups)
        return write_kubeconfig(path_of(self.directory, name), self.url, self.authority.own, client)


def start_api_server(
    directory: Path, environ: Mapping[str, str], network: Network = SIMULATED, program: str = "kube-apiserver"
) -> ApiServer:
    """Start etcd and kube-apiserver in this directory; return when the server is ready.

    `program`: what `binaries.PROGRAMS` calls an API server of another version.
    """
    etcd, server = (binary(name, environ) for name in ("etcd", program))
    started = time.monotonic()
    authority = Authority(directory / "certificates")
    service_accounts = authority.key_pair("service-accounts")
    etcd_url = _start_etcd(etcd, directory)
    port = free_port(network.server)
    url = f"https://{network.server}:{port}"
    arguments = api_server_arguments(etcd_url, network, port, authority, service_accounts)
    command = [str(server), *arguments]
    admin = authority.client("admin", "kubernetes-admin", ["system:masters"])
    kubeconfig = write_kubeconfig(directory / "kubeconfig", url, authority.own, admin)
    context = trusting(authority.own, admin)
    process = start("kube-apiserver", command, directory, lambda: answers(f"{url}/readyz", context), VARIABLES)
    wait_ready(process)
    log.info("action=ready program=kube-apiserver url=%s seconds=%.1f", url, time.monotonic() - started)
    return ApiServer(directory, network, url, authority, service_accounts, kubeconfig, process)


def stop_api_server(server: ApiServer) -> None:
    """Kill kube-apiserver; etcd stays. Clients get "connection refused"."""
    server.process.process.kill()
    server.process.process.wait()


def start_api_server_again(server: ApiServer) -> ApiServer:
    """Start it after `stop_api_server`, where it was and with all that it knew; return when it is ready."""
    was = server.process
    assert isinstance(was.process.args, list)
    process = start(was.name, was.process.args, server.directory, was.is_ready, VARIABLES)
    wait_ready(process)
    return replace(server, process=process)


def etcd_arguments(data: Path, client_url: str, peer_url: str) -> list[str]:
    """Return the arguments of an etcd with one member and nothing to lose."""
    return [
        f"--data-dir={data}",
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        "--unsafe-no-fsync",  # a test cluster does not outlive its machine, and fsync is most of a write's time
        "--log-level=warn",
    ]


def api_server_arguments(
    etcd_url: str, network: Network, port: int, authority: Authority, service_accounts: Certificate
) -> list[str]:
    """Return the arguments of a kube-apiserver with the admission and authorization of a real cluster."""
    server = authority.server("kube-apiserver", SERVER_NAMES, [network.server, network.kubernetes_service])
    kubelets = authority.client("kube-apiserver-to-kubelets", "kube-apiserver", ["system:masters"])
    # The Service `kubernetes` cannot point at loopback; without real pods nobody misses it.
    reconciler = [] if network.nodes else ["--endpoint-reconciler-type=none"]
    return [
        f"--etcd-servers={etcd_url}",
        f"--bind-address={network.server}",
        f"--advertise-address={network.server}",
        f"--secure-port={port}",
        f"--tls-cert-file={server.certificate}",
        f"--tls-private-key-file={server.key}",
        f"--client-ca-file={authority.own.certificate}",
        f"--kubelet-certificate-authority={authority.own.certificate}",
        f"--kubelet-client-certificate={kubelets.certificate}",
        f"--kubelet-client-key={kubelets.key}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={service_accounts.certificate}",
        f"--service-account-signing-key-file={service_accounts.key}",
        f"--service-cluster-ip-range={network.services}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",  # nobody resolves the names of nodes here
        *reconciler,
    ]


def _start_etcd(program: Path, directory: Path) -> str:
    client, peer = (f"http://{LOOPBACK}:{free_port()}" for _ in range(2))
    command = [str(program), *etcd_arguments(directory / "etcd", client, peer)]
    wait_ready(start("etcd", command, directory, lambda: answers(f"{client}/health")))
    return client
