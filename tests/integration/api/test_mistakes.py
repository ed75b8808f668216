"""What a newcomer does wrong in a cluster, as far as an API server answers: kubectl, `rljob status` and `rljob why`.

Mistakes without a cluster are in `tests/unit/cli/test_mistakes.py`, those that the operator, a scheduler or KubeRay
notices in `tests/integration/operator/`, and those of a kubelet in `tests/e2e/rljob/test_failures_in_pods.py`.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_cluster import home
from local_cluster.api_server import start_api_server
from local_cluster.kubectl import Kubectl
from rljob_api.exits import Exit
from support.cli.command import Ended, rljob
from support.operator.operator_process import check, kubeconfig_of
from support.operator.operator_world import raw_job

CRD = Path(__file__).parents[3] / "crds" / "rljob.dev_rljobs.yaml"
MINE, OTHER = "mistakes", "default"


def said(kubectl: Kubectl, *arguments: str, given: dict[str, Any] | None = None) -> str:
    """Return what kubectl writes to the terminal, whether it succeeds or not."""
    command = [str(kubectl.program), f"--kubeconfig={kubectl.kubeconfig}", *arguments]
    text = None if given is None else json.dumps(given)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def manifest(namespace: str = MINE, **sections: Any) -> dict[str, Any]:
    return {**raw_job(**sections), "metadata": {"name": "sums", "namespace": namespace}}


def asked(kubectl: Kubectl, verb: str, namespace: str = MINE) -> Ended:
    return rljob(verb, "sums", "-n", namespace, kubeconfig=kubectl.kubeconfig)


@pytest.fixture(scope="module")
def admin(kubectl_program: Path) -> Iterator[Kubectl]:
    """An administrator's kubectl of an API server that knows RLJobs and no RayClusters; no other test installs them."""
    with home.owned_directory(home.clusters_of_this_user()) as directory:
        found = Kubectl(kubectl_program, start_api_server(directory, os.environ).kubeconfig)
        found("apply", "--server-side", "-f", str(CRD))
        found.wait_for_crds()
        found.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MINE}})
        yield found


@pytest.fixture
def job(admin: Kubectl) -> Kubectl:
    """A job `sums` that nobody acts on; returns an administrator's kubectl."""
    admin("delete", "rljobs", "--all", "-n", MINE)
    admin("create", "-f", "-", given=json.dumps(manifest()))
    return admin


def test_a_namespace_with_a_typo(job: Kubectl) -> None:
    assert 'namespaces "mistaeks" not found' in said(job, "apply", "-f", "-", given=manifest("mistaeks"))


@pytest.mark.parametrize("verb", ["status", "why", "plot"])
def test_a_job_of_another_namespace(job: Kubectl, verb: str) -> None:
    answer = asked(job, verb, OTHER)
    assert answer.code == Exit.NOT_FOUND
    assert answer.err == f'there is no RLJob "sums" in namespace {OTHER}; there is one in namespace {MINE}\n'


def test_the_chart_without_kuberay(job: Kubectl) -> None:
    why = " ".join(asked(job, "why").out.split())
    assert why == (
        f"{MINE}/sums is new: this cluster serves no RayClusters, which the operator makes for the pods: "
        "install KubeRay 1.6 or newer"
    )
    status = asked(job, "status").out
    assert "no operator has seen it yet" in status
    assert f"see what it waits for: rljob why sums -n {MINE}" in " ".join(status.split())
    code, checked = check(job.kubeconfig, MINE)
    assert code == 1
    assert "FAILED  kind RayCluster is not served" in checked
    assert "install KubeRay 1.6 or newer" in checked


@pytest.mark.parametrize("verb", ["status", "why", "plot"])
def test_a_right_that_is_missing(job: Kubectl, tmp_path: Path, verb: str) -> None:
    job.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "stranger", "namespace": MINE}})
    stranger = Kubectl(job.program, kubeconfig_of(job, MINE, "stranger", tmp_path))
    who = f'User "system:serviceaccount:{MINE}:stranger" cannot get resource "rljobs" in API group "rljob.dev"'
    assert who in said(stranger, "apply", "-f", "-", given=manifest())
    answer = asked(stranger, verb)
    assert answer.code == Exit.FORBIDDEN
    assert answer.err.startswith(f"no permission to get rljobs in namespace {MINE}; ask for a role with it. ")
    assert who in answer.err


def test_a_name_that_is_taken(job: Kubectl) -> None:
    assert 'rljobs.rljob.dev "sums" already exists' in said(job, "create", "-f", "-", given=manifest())
    begun = json.dumps({"status": {"attempt": 1}})
    job("patch", "rljob", "sums", "-n", MINE, "--subresource=status", "--type=merge", "-p", begun)
    other = manifest(model={"checkpoint": "hf://Qwen/Qwen3-0.6B"})
    refused = said(job, "apply", "-f", "-", given=other)
    assert "spec.model: Invalid value: " in refused
    assert "cannot change checkpoint: the run has begun, status.attempt is 1; make another RLJob" in refused


@pytest.mark.parametrize("verb", ["status", "why", "plot"])
def test_a_job_that_was_deleted(job: Kubectl, verb: str) -> None:
    assert said(job, "delete", "rljob", "sums", "-n", MINE).startswith('rljob.rljob.dev "sums" deleted')
    answer = asked(job, verb)
    assert (answer.code, answer.err) == (Exit.NOT_FOUND, f'there is no RLJob "sums" in namespace {MINE}; it has none\n')
