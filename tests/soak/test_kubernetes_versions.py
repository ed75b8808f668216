"""The oldest Kubernetes that the chart accepts, and the newest, beside the usual one: a real API server of each.

On each, the CRD judges manifests as Python does, and the operator with KubeRay runs a job on a simulated node. The
first run builds the two others from their Go modules, in ten minutes each.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from local_cluster.binaries import OTHER_MINORS
from local_cluster.kubectl import Kubectl
from support.cluster.kubernetes_version import ON_THE_NODE, bare, usual_minor, with_pods
from support.operator.fake_head import FakeHeads, serving
from support.operator.operator_job import Job
from support.operator.operator_process import OperatorProcess, install_rights, kubeconfig_of_operator

pytestmark = pytest.mark.timeout(1800)
ROOT = Path(__file__).parents[2]
NAMESPACE = "ml"
MINORS = (*OTHER_MINORS, usual_minor())


@pytest.fixture(scope="module", params=MINORS)
def kubectl(request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    with with_pods(request.param, NAMESPACE) as found:
        yield found


@pytest.mark.parametrize("minor", MINORS)
def test_the_crd_judges_manifests_as_python_does(minor: str) -> None:
    with bare(minor) as (server, kubectl):
        said = kubectl("version", "-o", "json")
        assert f'"gitVersion": "v{minor}.' in said.partition('"serverVersion"')[2]
        path = os.pathsep.join([str(kubectl.program.parent), os.environ["PATH"]])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/integration/api"],
            cwd=ROOT,
            env={**os.environ, "KUBECONFIG": str(server.kubeconfig), "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-10000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


def test_the_operator_and_kuberay_run_a_job_to_its_end(kubectl: Kubectl, tmp_path: Path) -> None:
    install_rights(kubectl, NAMESPACE, "--set", f"namespaces={{{NAMESPACE}}}")
    heads = FakeHeads()
    with ExitStack() as stack:
        url = stack.enter_context(serving(heads))
        kubeconfig = kubeconfig_of_operator(kubectl, NAMESPACE, tmp_path)
        stack.enter_context(OperatorProcess(kubeconfig, NAMESPACE, url, tmp_path / "operator.log"))
        job = Job(kubectl, NAMESPACE, pods={"head": ON_THE_NODE, "trainer": ON_THE_NODE, "rollout": ON_THE_NODE})
        status = job.until("Training")
        assert len(job.pods()) == 3
        heads.head(NAMESPACE).end(0)
        job.until("Succeeded")
    assert status["resolved"]["image"] == "rljob/trainer:test"
