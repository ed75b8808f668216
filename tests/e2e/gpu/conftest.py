"""rljob on two nodes with the GPUs of this machine, whose programs are also what its pods run."""

import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster import faults, machine_image
from local_cluster.kubectl import Kubectl
from local_cluster.node_cluster import NodeCluster
from local_cluster.project import Workspace, install, workspace

LOGS_VARIABLE = "LOGS"
"""names a directory in which the logs of all runs are kept"""
LOST_POD_S = 15
"""how long a pod stays on a silent node"""


@pytest.fixture(scope="session")
def rljob(gpu_nodes: NodeCluster) -> NodeCluster:
    """The cluster, with image, chart and operator."""
    logging.getLogger("local_cluster").setLevel(logging.INFO)
    began = time.monotonic()
    install(gpu_nodes, os.environ, f"--set=jobLimits.lostPodSeconds={LOST_POD_S}", load_images=machine_image.load)
    print(f"\nimage and chart {time.monotonic() - began:.1f} s", flush=True)
    return gpu_nodes


@pytest.fixture
def kubectl(rljob: NodeCluster) -> Kubectl:
    return rljob.kubectl


@pytest.fixture
def place(rljob: NodeCluster) -> Iterator[Workspace]:
    """A namespace that enforces `restricted`, with a volume; nodes are on again when it goes."""
    made = workspace(rljob, f"test-{uuid.uuid4().hex[:8]}")
    yield made
    if kept := os.environ.get(LOGS_VARIABLE):
        for logs in made.volume.glob("*/*/logs"):
            shutil.copytree(logs, Path(kept) / logs.parent.name, dirs_exist_ok=True)
    rljob.kubectl("delete", "namespace", made.namespace, "--wait=false")
    faults.restore(rljob.nodes, rljob.kubectl, os.environ)
    shutil.rmtree(made.volume, ignore_errors=True)
