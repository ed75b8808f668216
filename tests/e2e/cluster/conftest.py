"""A real node with the image that the tests' pods run."""

import pytest

from local_cluster.kubectl import Kubectl
from local_cluster.node_cluster import NodeCluster
from support.cluster.busybox import busybox_archive


@pytest.fixture(scope="module")
def kubectl(node_cluster: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    if not node_cluster.nodes:
        pytest.skip("KUBECONFIG names a cluster into which nobody here can load an image")
    node_cluster.import_archive(busybox_archive(tmp_path_factory.mktemp("image")))
    return node_cluster.kubectl
