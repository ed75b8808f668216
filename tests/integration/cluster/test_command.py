"""`python -m local_cluster`, which `make cluster` and `make cluster-down` call, and clusters that are given."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import local_cluster
from local_cluster import home
from local_cluster.api_server import start_api_server
from local_cluster.binaries import binary
from local_cluster.kubectl import Kubectl
from local_cluster.processes import find
from support.waiting import eventually

REPOSITORY = Path(__file__).parents[3]
IMPORTABLE = {"PYTHONPATH": str(Path(local_cluster.__file__).parents[1])}


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a cluster, of which nothing is left after the test, however that ends."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    yield name
    home.remove(home.clusters_of_this_user() / name)


@pytest.mark.long
@pytest.mark.usefixtures("kubectl")  # has everything built
def test_after_a_killed_start_down_leaves_nothing(name: str) -> None:
    directory = home.clusters_of_this_user() / name
    with subprocess.Popen(_command("up", name), env={**os.environ, **IMPORTABLE}) as starter:
        try:
            eventually(lambda: _names(directory), lambda names: {"etcd", "kube-apiserver"} <= set(names), 300.0)
        finally:
            starter.kill()
    assert {"etcd", "kube-apiserver"} <= set(_names(directory))
    subprocess.run(_command("down", name), env={**os.environ, **IMPORTABLE}, check=True)
    assert _names(directory) == []
    assert not directory.exists()


@pytest.mark.long
@pytest.mark.usefixtures("kubectl")
def test_a_running_cluster_is_kept_and_an_incomplete_one_is_replaced(name: str) -> None:
    directory = home.clusters_of_this_user() / name
    first, again, without_etcd = _up(name), _up(name), _up_after_losing("etcd", name)
    subprocess.run(_command("down", name), env={**os.environ, **IMPORTABLE}, check=True)
    assert first == again
    assert len(without_etcd) == len(first)
    assert not set(without_etcd) & set(first)
    assert find(directory) == []


def test_assets_of_kubebuilder_run_without_go(kubectl_program: Path, tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    for program in ("etcd", "kube-apiserver"):
        (assets / program).symlink_to(binary(program, os.environ))
    environ = {"KUBEBUILDER_ASSETS": str(assets), "RLJOB_CACHE": str(tmp_path), "PATH": str(tmp_path)}
    with home.owned_directory(home.clusters_of_this_user()) as directory:
        server = start_api_server(directory, environ)
        namespaces = Kubectl(kubectl_program, server.kubeconfig).names("namespaces")
    assert "default" in namespaces


@pytest.mark.long
def test_a_cluster_that_is_given_is_used_and_nothing_is_built(kubectl: Kubectl, tmp_path: Path) -> None:
    given = {
        "KUBECONFIG": str(kubectl.kubeconfig),
        "PATH": str(kubectl.program.parent),  # no Go there
        "RLJOB_CACHE": str(tmp_path),
    }
    tests = ["test_api_server.py::test_who_has_no_role_is_refused", "test_simulated_nodes.py"]
    paths = [str(Path(__file__).with_name(test)) for test in tests]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths],
        cwd=REPOSITORY,
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "4 passed" in done.stdout, done.stdout
    assert list(tmp_path.iterdir()) == []


def _command(verb: str, name: str) -> list[str]:
    return [sys.executable, "-m", "local_cluster", verb, "--name", name]


def _up(name: str) -> list[int]:
    """Bring the cluster up and return the pids of its processes."""
    subprocess.run(_command("up", name), env={**os.environ, **IMPORTABLE}, check=True)
    return sorted(process.pid for process in find(home.clusters_of_this_user() / name))


def _up_after_losing(program: str, name: str) -> list[int]:
    """As `_up`, after one program of the cluster was killed."""
    (lost,) = [p for p in find(home.clusters_of_this_user() / name) if p.name() == program]
    lost.kill()
    lost.wait()
    return _up(name)


def _names(directory: Path) -> list[str]:
    return sorted(process.name() for process in find(directory))
