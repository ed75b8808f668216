"""The oldest Kubernetes that the chart accepts: one that knows what the CRD needs, and the one that the page names."""

import re
from pathlib import Path

import yaml

from local_cluster.binaries import OTHER_MINORS
from support.cluster.kubernetes_version import usual_minor
from support.operator.chart_page import CHART

OLDEST, *_ = OTHER_MINORS
ROOT = Path(__file__).parents[3]
CRD = (ROOT / "crds" / "rljob.dev_rljobs.yaml").read_text()
NEEDS = {
    "selectableFields:": 31,  # feature gate CustomResourceFieldSelectors: off in 1.30, on in 1.31
    ".format(": 30,  # strings of CEL, version 2: in 1.29, and for new rules one version later
}
"""what the CRD uses -> the minor version of Kubernetes 1 that accepts it by default"""


def minor_of_the_chart() -> int:
    found = re.fullmatch(r">=1\.([0-9]+)\.0-0", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"])
    assert found
    return int(found[1])


def test_the_chart_accepts_no_kubernetes_that_lacks_what_the_crd_uses():
    assert minor_of_the_chart() == max(minor for used, minor in NEEDS.items() if used in CRD)


def test_a_real_api_server_of_the_oldest_version_judges_the_crd_in_the_soak_test():
    assert f"1.{minor_of_the_chart()}" == OLDEST


def test_the_page_names_the_versions_that_are_run():
    page = " ".join((ROOT / "docs" / "install.md").read_text().split())
    oldest, newest = OTHER_MINORS
    assert f"Run against the API servers of {oldest}, {usual_minor()} and {newest}" in page


def test_the_page_names_the_version_of_the_chart():
    page = (ROOT / "docs" / "install.md").read_text()
    assert re.findall(r"Kubernetes 1\.([0-9]+) or newer", page) == [str(minor_of_the_chart())]
