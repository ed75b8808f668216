"""A cluster with a node comes and goes, also by a kill, and the machine is as it was."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import local_cluster
from local_cluster import home
from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl
from local_cluster.node_cluster import cluster_of
from local_cluster.packages import require
from local_cluster.processes import find
from support.cluster.busybox import busybox_archive, pod
from support.cluster.machine import changed, machine
from support.waiting import eventually

SEEN = {"interfaces", "addresses", "routes", "network namespaces", "mount namespaces", "cgroups"}
"""what of a running cluster is seen from outside it; its mounts, firewall rules and state directories are not"""


@pytest.fixture
def directory() -> Iterator[Path]:
    path = home.clusters_of_this_user() / f"test-{uuid.uuid4().hex[:8]}"
    yield path
    home.remove(path)


def test_down_leaves_the_machine_as_it_was(directory: Path, kubectl_program: Path, tmp_path: Path) -> None:
    before = machine()
    _run("up", directory)
    _run_a_pod(Kubectl(kubectl_program, directory / "kubeconfig"), busybox_archive(tmp_path))
    assert changed(before, machine()) == SEEN
    _run("down", directory)
    assert changed(before, machine()) == set()
    assert find(directory) == []
    assert not directory.exists()


def test_down_after_a_killed_start_leaves_the_machine_as_it_was(directory: Path) -> None:
    before = machine()
    starter = subprocess.Popen(_command("up", directory), env=_environment())
    eventually(lambda: {process.name() for process in find(directory)}, lambda names: "kubelet" in names)
    starter.kill()
    starter.wait()
    assert changed(before, machine()) >= {"interfaces", "network namespaces", "cgroups"}
    _run("down", directory)
    assert changed(before, machine()) == set()
    assert find(directory) == []


def test_without_its_packages_a_node_is_refused_with_the_command_that_installs_them(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"needs the packages containerd, runc, .*`apt-get install .*catatonit"):
        require({"PATH": str(tmp_path)})


def _run_a_pod(kubectl: Kubectl, archive: Path) -> None:
    cluster_of(kubectl).import_archive(archive)
    kubectl.apply(pod("sleeper", "default", "exec sleep 600"))
    kubectl("wait", "--for=condition=Ready", "pod/sleeper", "--timeout=60s")


def _run(verb: str, directory: Path) -> None:
    subprocess.run(_command(verb, directory), env=_environment(), check=True)


def _command(verb: str, directory: Path) -> list[str]:
    return [sys.executable, "-m", "local_cluster", verb, "--profile=node", "--name", directory.name]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(local_cluster.__file__).parents[1])}
