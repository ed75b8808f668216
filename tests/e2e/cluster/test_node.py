"""The node profile: a real kubelet runs real containers, and the network between them is real."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster.binaries import binary
from local_cluster.fixtures import temporary_namespace
from local_cluster.kubectl import Kubectl
from support.cluster.busybox import pod
from support.waiting import eventually

SERVE = "mkdir /tmp/www && echo it is served > /tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www"


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    with temporary_namespace(kubectl) as name:
        yield name


def test_a_pod_runs_its_command_and_its_log_is_read(kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(pod("hello", namespace, "echo hello from $HOSTNAME"))
    eventually(lambda: _phase(kubectl, namespace, "hello"), lambda phase: phase == "Succeeded")
    assert kubectl("logs", "hello", "-n", namespace) == "hello from hello\n"


def test_a_command_runs_in_a_running_pod(kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(pod("sleeper", namespace, "echo kept > /tmp/file; exec sleep 600"))
    kubectl("wait", "--for=condition=Ready", "pod/sleeper", "-n", namespace, "--timeout=60s")
    assert kubectl("exec", "sleeper", "-n", namespace, "--", "cat", "/tmp/file") == "kept\n"


def test_a_service_is_found_by_name_and_served_by_its_pod(kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(pod("web", namespace, SERVE), _service("web", namespace))
    kubectl("wait", "--for=condition=Ready", "pod/web", "-n", namespace, "--timeout=60s")
    # The rules of a new Service take kube-proxy a second.
    kubectl.apply(pod("client", namespace, "until wget -q -O - http://web; do sleep 0.2; done"))
    eventually(lambda: _phase(kubectl, namespace, "client"), lambda phase: phase == "Succeeded")
    assert kubectl("logs", "client", "-n", namespace) == "it is served\n"


def test_a_name_that_nobody_has_is_not_found(kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(pod("lost", namespace, "nslookup nobody.default.svc.cluster.local"))
    eventually(lambda: _phase(kubectl, namespace, "lost"), lambda phase: phase == "Failed")
    assert "NXDOMAIN" in kubectl("logs", "lost", "-n", namespace)


def test_a_pod_reaches_the_api_server_as_its_service_account(kubectl: Kubectl, namespace: str) -> None:
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    header = f'--header "Authorization: Bearer $(cat {account}/token)"'
    ask = f"wget -q -O - --no-check-certificate {header} https://kubernetes.default/version"
    kubectl.apply(pod("asker", namespace, ask))
    eventually(lambda: _phase(kubectl, namespace, "asker"), lambda phase: phase == "Succeeded")
    assert '"gitVersion"' in kubectl("logs", "asker", "-n", namespace)


def test_a_pod_over_its_memory_limit_is_killed(kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(pod("glutton", namespace, "tail /dev/zero", {"memory": "32Mi"}))
    eventually(lambda: _phase(kubectl, namespace, "glutton"), lambda phase: phase == "Failed")
    (status,) = kubectl.get("pod", "glutton", "-n", namespace)["status"]["containerStatuses"]
    assert status["state"]["terminated"]["reason"] == "OOMKilled"


def test_the_node_has_eight_gpus_and_not_nine(kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(pod("eight", namespace, "echo fits", {"nvidia.com/gpu": "8"}))
    kubectl.apply(pod("nine", namespace, "echo never", {"nvidia.com/gpu": "9"}))
    eventually(lambda: _phase(kubectl, namespace, "eight"), lambda phase: phase == "Succeeded")
    events = eventually(
        lambda: kubectl("get", "events", "-n", namespace, "--field-selector=involvedObject.name=nine"), bool
    )
    assert "Insufficient nvidia.com/gpu" in events


def test_helm_installs_a_chart(kubectl: Kubectl, namespace: str, tmp_path: Path) -> None:
    chart = tmp_path / "tiny"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: tiny\nversion: 0.1.0\n")
    (chart / "templates" / "map.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: tiny}\ndata: {version: '{{ .Capabilities.KubeVersion }}'}\n"
    )
    helm = [str(binary("helm", os.environ)), "install", "tiny", str(chart), "--namespace", namespace, "--wait"]
    subprocess.run(helm, env={**os.environ, **kubectl.environment}, check=True)
    assert kubectl.get("configmap", "tiny", "-n", namespace)["data"]["version"].startswith("v1.")


def _phase(kubectl: Kubectl, namespace: str, name: str) -> str:
    return str(kubectl.get("pod", name, "-n", namespace)["status"]["phase"])


def _service(name: str, namespace: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
