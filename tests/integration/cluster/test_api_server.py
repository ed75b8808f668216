"""A real etcd and kube-apiserver without anything around them."""

import json
from pathlib import Path

import pytest

from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl


@pytest.fixture
def judge(kubectl_program: Path, api_server: Path) -> Kubectl:
    return Kubectl(kubectl_program, api_server)


def test_the_server_knows_its_version_so_that_clients_accept_it(judge: Kubectl) -> None:
    version = json.loads(judge("get", "--raw", "/version"))
    assert version["gitVersion"].startswith(f"v{version['major']}.{version['minor']}.")


def test_who_has_no_role_is_refused(judge: Kubectl) -> None:
    with pytest.raises(ClusterError, match="Forbidden"):
        judge("get", "secrets", "-n", "default", "--as=nobody")
    assert judge.get("configmaps", "-n", "default")["kind"] == "List"


def test_the_schema_is_checked(judge: Kubectl) -> None:
    wrong = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a_b", "namespace": "default"}}
    with pytest.raises(ClusterError, match="lowercase RFC 1123"):
        judge.apply(wrong)
