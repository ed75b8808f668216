"""A release of the chart, by the real helm on a real API server: installed, checked, upgraded, removed, made again.

Simulated nodes run no programs, so the operator is a process here, with the rights that the release has given it.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from local_cluster.kubectl import Kubectl, Manifest
from rljob_operator.installation import AGENT_SANDBOX, KUEUE, RIGHTS, Rights
from support.operator.fake_head import FakeHeads, serving
from support.operator.helm_release import CHART, Release, rendered
from support.operator.operator_process import OperatorProcess, check, kubeconfig_of_operator

pytestmark = pytest.mark.timeout(900)
CRD = "rljobs.rljob.dev"


@pytest.fixture
def release(kubectl: Kubectl, namespace: str) -> Iterator[Release]:
    """A release in its own namespace, for jobs there; the CRD of the session's cluster is taken over."""
    found = Release(kubectl, namespace)
    found.install("--set", f"namespaces={{{namespace}}}", "--take-ownership")
    yield found
    found.uninstall()


@pytest.fixture
def operator(
    kubectl: Kubectl, release: Release, heads: FakeHeads, tmp_path: Path
) -> Iterator[Callable[[], OperatorProcess]]:
    """Start the operator as the release's ServiceAccount, of which there is a new one after each installation."""
    with ExitStack() as stack:
        url = stack.enter_context(serving(heads))

        def started() -> OperatorProcess:
            identity = kubeconfig_of_operator(kubectl, release.namespace, tmp_path)
            return stack.enter_context(OperatorProcess(identity, release.namespace, url, tmp_path / "operator.log"))

        yield started


def other_chart(directory: Path) -> Path:
    """Return a copy of the chart whose CRD has one more column."""
    chart = directory / "rljob"
    shutil.copytree(CHART, chart)
    file = chart / "files" / "rljob.dev_rljobs.yaml"
    crd = yaml.safe_load(file.read_text())
    column = {"name": "Newest", "type": "string", "jsonPath": ".status.phase"}
    crd["spec"]["versions"][0]["additionalPrinterColumns"].append(column)
    file.unlink()
    file.write_text(yaml.safe_dump(crd))
    return chart


def columns(kubectl: Kubectl) -> list[str]:
    crd = kubectl.get("crd", CRD)
    return [column["name"] for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]]


def belongings(kubectl: Kubectl, namespace: str) -> set[str]:
    """Return the uids of all that a job has."""
    items = kubectl.get("rljobs,rayclusters,secrets,configmaps,services,pods", "-n", namespace)["items"]
    mine = (item for item in items if item["kind"] == "RLJob" or "rljob.dev/job" in item["metadata"].get("labels", {}))
    return {item["metadata"]["uid"] for item in mine}


def test_upgrade_removal_and_a_second_installation_lose_no_job(
    kubectl: Kubectl,
    release: Release,
    operator: Callable[[], OperatorProcess],
    new_job: Callable,
    heads: FakeHeads,
    tmp_path: Path,
) -> None:
    first = operator()
    job = new_job()
    job.until("Training")
    before = belongings(kubectl, release.namespace)
    assert len(before) >= 7

    assert "Newest" not in columns(kubectl)
    release.upgrade(other_chart(tmp_path))
    assert "Newest" in columns(kubectl)
    assert belongings(kubectl, release.namespace) == before

    assert first.terminate() == 0
    release.uninstall()
    assert kubectl.names("deployment,role,serviceaccount", "-n", release.namespace) == ["default"]
    assert "Newest" in columns(kubectl), "the CRD stays"
    assert belongings(kubectl, release.namespace) == before

    release.install("--set", f"namespaces={{{release.namespace}}}")
    assert "Newest" not in columns(kubectl)
    operator()
    heads.head(release.namespace).end(0)
    job.until("Succeeded")
    assert len(heads.submissions) == 1, "the second installation went on with the driver of the first"


def test_the_check_of_an_installation_finds_it_whole(
    kubectl: Kubectl, release: Release, operator: Callable[[], OperatorProcess], tmp_path: Path
) -> None:
    operator().get("/healthz")
    code, text = check(kubeconfig_of_operator(kubectl, release.namespace, tmp_path), release.namespace)
    assert (code, text.count("ok  ")) == (0, 4), text


def test_the_check_of_an_installation_names_the_rights_that_are_missing(
    kubectl: Kubectl, release: Release, operator: Callable[[], OperatorProcess], tmp_path: Path
) -> None:
    operator().get("/healthz")
    role = kubectl.get("role", f"{release.namespace}-operator", "-n", release.namespace)
    rules = [{**rule, "verbs": ["get"]} if rule["resources"] == ["secrets"] else rule for rule in role["rules"]]
    kubectl("replace", "-f", "-", given=json.dumps({**role, "rules": rules}))
    code, text = check(kubeconfig_of_operator(kubectl, release.namespace, tmp_path), release.namespace)
    assert code == 1
    assert f"FAILED  rights are missing in namespace {release.namespace}: delete secrets;" in text


def verbs(rules: list[Manifest]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


WITH_OTHERS = (*RIGHTS, *KUEUE.rights, *AGENT_SANDBOX.rights)


@pytest.mark.parametrize(
    ("values", "role", "rights"),
    [
        ((), "ClusterRole", RIGHTS),
        (("--set", "namespaces={a}"), "Role", RIGHTS),
        (("--set=kueue.enabled=true", "--set=agentSandbox.enabled=true"), "ClusterRole", WITH_OTHERS),
    ],
)
def test_the_check_asks_for_exactly_the_rights_that_the_chart_gives(
    values: tuple[str, ...], role: str, rights: Rights
) -> None:
    given = rendered(*values)[f"{role}/rl-operator"]["rules"]
    assert verbs(given) == {(group, resource, verb) for group, resource, those in rights for verb in those}


def test_the_names_of_readable_secrets_can_be_listed() -> None:
    given = rendered("--set", "readableSecrets={sums-7f3a1}")["ClusterRole/rl-operator"]["rules"]
    (rule,) = (rule for rule in given if "get" in rule["verbs"] and rule["resources"] == ["secrets"])
    assert (rule["verbs"], rule["resourceNames"]) == (["get"], ["sums-7f3a1"])
