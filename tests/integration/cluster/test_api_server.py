"""A real etcd and kube-apiserver, and how their cluster comes and goes."""

import json
import subprocess
from pathlib import Path


def kubectl(kubeconfig: Path, *arguments: str) -> str:
    return subprocess.run(
        ["kubectl", "--kubeconfig", str(kubeconfig), *arguments], check=True, capture_output=True, text=True
    ).stdout


def test_the_server_calls_itself_by_its_version(control_plane: Path) -> None:
    assert json.loads(kubectl(control_plane, "get", "--raw", "/version"))["gitVersion"] == "v1.34.4"
