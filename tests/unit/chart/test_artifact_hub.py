"""What Artifact Hub reads of the chart, by the rules of its `ah lint` and its page on annotations of Helm charts."""

import re

import pytest
import yaml

from rljob_api.reading import manifest
from support.operator.chart_page import CHART

ANNOTATIONS = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
KINDS = {"added", "changed", "deprecated", "removed", "fixed", "security"}
CATEGORIES = {
    "ai-machine-learning",
    "database",
    "integration-delivery",
    "monitoring-logging",
    "networking",
    "security",
    "storage",
    "streaming-messaging",
    "skip-prediction",
}
CAPABILITIES = {"Basic Install", "Seamless Upgrades", "Full Lifecycle", "Deep Insights", "Auto Pilot"}
CRD = yaml.safe_load((CHART.parents[1] / "crds" / "rljob.dev_rljobs.yaml").read_text())


def read(name: str):
    return yaml.safe_load(ANNOTATIONS[f"artifacthub.io/{name}"])


def test_all_values_are_texts() -> None:
    assert all(isinstance(value, str) for value in ANNOTATIONS.values())


@pytest.mark.parametrize("name", ["operator", "prerelease", "containsSecurityUpdates"])
def test_a_yes_or_no_is_one(name: str) -> None:
    assert ANNOTATIONS[f"artifacthub.io/{name}"] in ("true", "false")


def test_words_are_of_their_lists() -> None:
    assert ANNOTATIONS["artifacthub.io/category"] in CATEGORIES
    assert ANNOTATIONS["artifacthub.io/operatorCapabilities"] in CAPABILITIES
    assert {each["kind"] for each in read("changes")} <= KINDS
    assert all(each["description"] for each in read("changes"))


def test_the_crd_is_that_of_the_chart() -> None:
    (crd,) = read("crds")
    assert (crd["name"], crd["kind"]) == (CRD["metadata"]["name"], CRD["spec"]["names"]["kind"])
    assert crd["version"] in [each["name"] for each in CRD["spec"]["versions"]]
    assert crd["displayName"] and crd["description"]


def test_the_example_is_a_valid_manifest() -> None:
    (example,) = read("crdsExamples")
    assert manifest.load(yaml.safe_dump(example)).metadata.name == "sums"


def test_the_repository_has_an_owner() -> None:
    said = yaml.safe_load((CHART.parent / "artifacthub-repo.yml").read_text())
    assert all(re.fullmatch(r"[^@ ]+@[^@ ]+", owner["email"]) and owner["name"] for owner in said["owners"])
