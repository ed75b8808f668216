"""The whole table of bad manifests, put through `kubectl apply` with CRD and webhook: the author reads why, at once."""

import json
import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster.kubectl import Kubectl
from rljob_api.errors import ManifestError
from rljob_api.generated.crd import GROUP, KIND, VERSION
from rljob_api.reading.document import document
from support.api.bad_manifests import Case, cases
from support.operator.webhook_process import WebhookProcess

TAKEN = {
    "nothing behind a colon": "to an API server it means absent",
    "a whole number with a decimal point": "kubectl sends 8.0 as 8",
}
"""what is no error here, and why"""
LEAST = 120
pytestmark = pytest.mark.timeout(900)  # the first test applies all of them


def reaches_the_server(case: Case) -> bool:
    """Whether kubectl sends a manifest: it is readable, and an RLJob."""
    try:
        content = document(case.text)
    except ManifestError:
        return False
    return (content.get("apiVersion"), content.get("kind")) == (f"{GROUP}/{VERSION}", KIND)


CASES = [case for case in cases() if reaches_the_server(case)]


def file_of(case: Case) -> str:
    return f"case-{CASES.index(case):03}.json"


@pytest.fixture(scope="module")
def said(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], Kubectl, str]]:
    """What kubectl prints about each file, by its name; the namespace; all of them are applied by one command."""
    directory, namespace = tmp_path_factory.mktemp("bad"), f"bad-{uuid.uuid4().hex[:8]}"
    kubectl.make_namespace(namespace)
    process = WebhookProcess(kubectl, namespace, tmp_path_factory.mktemp("webhook"))
    try:
        process.until_ready()
        yield applied(kubectl, namespace, directory), kubectl, namespace
    finally:
        process.close()
        kubectl("delete", "namespace", namespace, "--wait=false")


def applied(kubectl: Kubectl, namespace: str, directory: Path) -> dict[str, str]:
    for case in CASES:
        content = document(case.text)
        if content.get("metadata", {}).get("name") == "arithmetic":
            content["metadata"]["name"] = file_of(case).removesuffix(".json")
        (directory / file_of(case)).write_text(json.dumps(content))
    command = [str(kubectl.program), f"--kubeconfig={kubectl.kubeconfig}", "apply", "-n", namespace]
    done = subprocess.run([*command, "-f", str(directory)], capture_output=True, text=True, check=False)
    found: dict[str, str] = {}
    name = ""
    for line in done.stderr.splitlines():
        about = re.search(r'/(case-\d+\.json)"', line) or re.search(r'The RLJob "(case-\d+)"', line)
        name = f"{about[1].removesuffix('.json')}.json" if about else name
        found[name] = f"{found.get(name, '')}{line}\n"
    return found


def test_the_table_is_long_enough():
    assert len(CASES) >= LEAST


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_author_reads_which_field_is_wrong(said: tuple[dict[str, str], Kubectl, str], case: Case) -> None:
    texts, _, _ = said
    if case.name in TAKEN:
        assert file_of(case) not in texts
        return
    text = texts.get(file_of(case), "")
    assert text, "it was taken"
    if "denied the request" in text:
        assert [problem for problem in case.says if problem not in text] == []
    else:
        leaves = [re.split(r"[.\[]", problem.partition(": ")[0])[-1].rstrip("]") for problem in case.says]
        assert any(leaf in text for leaf in leaves)


def test_none_of_them_costs_a_pod(said: tuple[dict[str, str], Kubectl, str]) -> None:
    _, kubectl, namespace = said
    taken = sorted(file_of(case).removesuffix(".json") for case in CASES if case.name in TAKEN)
    assert sorted(kubectl.names("rljobs", "-n", namespace)) == taken
    assert kubectl.names("pods,rayclusters", "-n", namespace) == []
