"""A Kubernetes of another minor version: its own API server, with kwok and KubeRay as always.

There is no controller manager and no scheduler: those of the usual version do not fit every other one. So a job's pods
name their node, and the service account that a namespace gets is made here.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from local_cluster import control_plane, home, kuberay, kwok
from local_cluster.api_server import ApiServer, start_api_server
from local_cluster.binaries import MODULES, OTHER_MINORS, binary
from local_cluster.kubectl import Kubectl
from local_cluster.processes import wait_ready

NODE = "simulated"
ON_THE_NODE = {"template": {"spec": {"nodeName": NODE}}}
"""settings of a role of `spec.pods`"""


def usual_minor() -> str:
    """Return the version of all other tests: `1.34`."""
    words = (MODULES / "kubernetes" / "go.mod").read_text().split()
    return ".".join(words[words.index("k8s.io/kubernetes") + 1].removeprefix("v").split(".")[:2])


@contextmanager
def bare(minor: str) -> Iterator[tuple[ApiServer, Kubectl]]:
    """Start an API server of this version with nothing around it; gives also an administrator's kubectl."""
    with home.owned_directory(home.clusters_of_this_user()) as directory:
        program = f"kube-apiserver-{minor}" if minor in OTHER_MINORS else "kube-apiserver"
        server = start_api_server(directory, os.environ, program=program)
        yield server, Kubectl(binary("kubectl", os.environ), server.kubeconfig)


@contextmanager
def with_pods(minor: str, namespace: str) -> Iterator[Kubectl]:
    """Start such an API server with our CRD, KubeRay and one simulated node, and make the namespace."""
    with bare(minor) as (server, kubectl):
        crds = (*control_plane.OUR_CRDS, kwok.crd(os.environ), *kuberay.crds(os.environ))
        kubectl("apply", "--server-side", *(f"--filename={path}" for path in crds))
        kubectl.wait_for_crds()
        kubectl.make_namespace(namespace)
        kubectl("create", "serviceaccount", "default", "-n", namespace)
        programs = kwok.start_kwok(server, kubectl, os.environ), kuberay.start_kuberay(server, kubectl, os.environ)
        kubectl.apply(kwok.simulated_node(NODE))
        for program in programs:
            wait_ready(program)
        yield kubectl
