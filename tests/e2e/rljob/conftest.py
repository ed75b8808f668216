"""rljob, installed by its chart on a cluster with a real node."""

import os
import shutil
import uuid
from collections.abc import Iterator

import pytest

from local_cluster.kubectl import Kubectl
from local_cluster.node_cluster import NodeCluster
from local_cluster.project import Workspace, install, workspace


@pytest.fixture(scope="session")
def rljob(node_cluster: NodeCluster) -> NodeCluster:
    """The cluster, with images, chart and operator."""
    if not node_cluster.nodes:
        pytest.skip("KUBECONFIG names a cluster into which nobody here can load an image")
    install(node_cluster, os.environ)
    return node_cluster


@pytest.fixture
def kubectl(rljob: NodeCluster) -> Kubectl:
    return rljob.kubectl


@pytest.fixture
def place(rljob: NodeCluster) -> Iterator[Workspace]:
    """A namespace that enforces `restricted`, with a volume."""
    made = workspace(rljob, f"test-{uuid.uuid4().hex[:8]}")
    yield made
    rljob.kubectl("delete", "namespace", made.namespace, "--wait=false")
    shutil.rmtree(made.volume)
