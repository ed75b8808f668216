"""The Python client on a real API server, as a user with the cluster's role `edit`. The test writes the statuses."""

import json
from pathlib import Path

import pytest
import yaml

from local_cluster.kubectl import Kubectl
from rljob_api.exits import Exit
from rljob_cli import client
from rljob_cli.client import ClusterError, NoObjectError, Phase
from support.cli.command import ROOT, rljob
from support.operator.operator_process import kubeconfig_of
from support.waiting import eventually

EXAMPLE = ROOT / "docs" / "examples" / "quickstart.yaml"


@pytest.fixture
def editor(kubectl: Kubectl, namespace: str, kubeconfig: Path, tmp_path: Path) -> Path:
    """Return the kubeconfig of a user who may edit; `kubeconfig` has installed the roles."""
    kubectl("create", "serviceaccount", "editor", "-n", namespace)
    whose = f"--serviceaccount={namespace}:editor"
    kubectl("create", "rolebinding", "editor", "--clusterrole=edit", whose, "-n", namespace)
    found = kubeconfig_of(kubectl, namespace, "editor", tmp_path)
    eventually(lambda: rljob("status", kubeconfig=found).code, lambda code: code == Exit.OK)
    return found


def test_a_job_is_applied_watched_changed_and_deleted(kubectl: Kubectl, namespace: str, editor: Path) -> None:
    job = client.apply(EXAMPLE, kubeconfig=editor)

    def write(phase: Phase, step: int) -> None:
        status = json.dumps({"status": {"phase": phase, "progress": {"step": step, "reward": 0.5}}})
        where = ("-n", namespace, "--subresource=status", "--type=merge")
        kubectl("patch", "rljob", "quickstart", *where, "-p", status)

    write(Phase.TRAINING, 1)
    progress = job.stream()
    assert next(progress).step == 1
    write(Phase.TRAINING, 2)
    assert next(progress).step == 2
    job.suspend()
    assert kubectl("get", "rljob", "quickstart", "-n", namespace, "-o", "jsonpath={.spec.suspend}").strip() == "true"
    job.resume()
    write(Phase.SUCCEEDED, 16)
    assert next(progress).step == 16
    assert job.wait().phase is Phase.SUCCEEDED
    assert job.wait(timeout_s=5).progress == job.status.progress

    waiting = client.job("quickstart", kubeconfig=editor).stream(timeout_s=60)
    assert next(waiting).step == 16
    job.delete()
    with pytest.raises(NoObjectError):
        job.delete()


def test_a_second_apply_changes_the_job_and_takes_no_field_of_another(
    kubectl: Kubectl, namespace: str, editor: Path
) -> None:
    manifest = yaml.safe_load(EXAMPLE.read_text())
    client.apply(manifest, kubeconfig=editor)
    manifest["spec"]["training"]["steps"] = 24
    client.apply(manifest, kubeconfig=editor)
    steps = ("get", "rljob", "quickstart", "-n", namespace, "-o", "jsonpath={.spec.training.steps}")
    assert kubectl(*steps).strip() == "24"
    theirs = {**manifest, "metadata": {"name": "quickstart", "namespace": namespace}}
    theirs["spec"]["training"]["steps"] = 32
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=json.dumps(theirs))
    manifest["spec"]["training"]["steps"] = 40
    with pytest.raises(ClusterError, match="conflict"):
        client.apply(manifest, kubeconfig=editor)


def test_a_job_that_is_deleted_ends_its_stream(kubectl: Kubectl, namespace: str, editor: Path) -> None:
    job = client.apply(EXAMPLE, kubeconfig=editor)
    status = json.dumps({"status": {"phase": "Training", "progress": {"step": 1}}})
    kubectl("patch", "rljob", "quickstart", "-n", namespace, "--subresource=status", "--type=merge", "-p", status)
    progress = job.stream()
    assert next(progress).step == 1
    job.delete()
    with pytest.raises(NoObjectError):
        next(progress)
