"""The chart, rendered by the real helm, and applied as a dry run to a real API server."""

from pathlib import Path

import pytest
import yaml

from local_cluster.kubectl import Kubectl
from operator_process import ROOT, helm
from rljob_operator.desired import OPERATOR_LABELS
from rljob_operator.settings import settings
from rljob_operator.world import Storage


def rendered(*values: str) -> dict[str, dict]:
    documents = yaml.safe_load_all(helm("template", "rl", "--namespace", "rljob", *values))
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in documents if each}


def test_the_chart_carries_the_crd_as_it_is_generated():
    assert (ROOT / "charts/rljob/files/rljob.dev_rljobs.yaml").read_text() == (
        ROOT / "crds/rljob.dev_rljobs.yaml"
    ).read_text()


def test_the_operator_understands_what_the_chart_tells_it():
    storage = '{"persistentVolumeClaim":{"claimName":"runs"}}'
    found = rendered("--set", "trainer.image=t:1,namespaces={a,b}", "--set-json", f"trainer.storage={storage}")
    (container,) = found["Deployment/rl-operator"]["spec"]["template"]["spec"]["containers"]
    given = settings(container["args"], {})
    assert (given.defaults.image, given.namespaces, given.lease) == ("t:1", ("a", "b"), "rl-operator")
    assert given.defaults.storage == Storage({"persistentVolumeClaim": {"claimName": "runs"}})


def test_jobs_let_the_chart_s_pods_in():
    labels = rendered()["Deployment/rl-operator"]["spec"]["template"]["metadata"]["labels"]
    assert OPERATOR_LABELS.items() <= labels.items()


def test_namespaces_narrow_the_rights():
    found = rendered("--set", "namespaces={a}")
    assert "ClusterRoleBinding/rl-operator" not in found
    assert found["RoleBinding/rl-operator"]["metadata"]["namespace"] == "a"


@pytest.mark.parametrize("value", ["replicaCount=0", "trainer.storagePath=rljob", "replicas=2", "logLevel=chatty"])
def test_values_that_mean_nothing_are_refused(value: str):
    with pytest.raises(RuntimeError, match=value.partition("=")[0].rpartition(".")[2]):
        helm("template", "rl", "--set", value)


def test_an_api_server_takes_all_of_it(kubectl: Kubectl, namespace: str, tmp_path: Path):
    text = helm("template", "rl", "--namespace", namespace, "--set", "trainer.image=t:1")
    out = kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", "-", given=text)
    assert "deployment.apps/rl-operator serverside-applied" in out
