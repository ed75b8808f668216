"""The commands of the page on the first job, word by word, in an empty directory with an installed wheel.

An API server answers them. Those that install the chart or wait for pods need a cluster with nodes.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster import home
from local_cluster.api_server import start_api_server
from local_cluster.kubectl import Kubectl
from support.cli.empty_environment import ROOT
from support.cli.page_commands import blocks, section
from support.cli.page_reader import new_reader

PAGE = (ROOT / "docs" / "first-job.md").read_text()
CRD = ROOT / "crds" / "rljob.dev_rljobs.yaml"
NEEDS_PODS = ("kubectl wait ", "kubectl delete namespace ", "rljob plot ")
"""lines of the page that are left out: nobody runs a pod here, or empties a namespace"""


@pytest.fixture
def admin(kubectl_program: Path) -> Iterator[Kubectl]:
    """An administrator of an API server that knows RLJobs; the namespaces of the page are in no other test's way."""
    with home.owned_directory(home.clusters_of_this_user()) as directory:
        found = Kubectl(kubectl_program, start_api_server(directory, os.environ).kubeconfig)
        found("apply", "--server-side", "-f", str(CRD))
        found.wait_for_crds()
        yield found


def test_a_reader_of_the_page_gets_a_job_into_the_cluster_and_out_of_it(admin: Kubectl, tmp_path: Path) -> None:
    reader = new_reader(tmp_path, admin.kubeconfig, kubectl=admin.program)
    assert [*reader.directory.iterdir()] == []
    printed = ""
    for block in blocks(section(PAGE, "Train")):
        lines = [line for line in block.script.splitlines() if not line.startswith(NEEDS_PODS)]
        printed += reader.types("\n".join(lines))
    assert "sums.yaml: valid" in printed
    assert "persistentvolumeclaim/runs created\n" in printed
    assert "rljob.rljob.dev/sums created\n" in printed
    assert "\ndemo/sums  " in printed
    assert "no operator has seen it yet" in printed
    assert 'rljob.rljob.dev "sums" deleted' in printed
    labels = admin.get("namespace", "demo")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
