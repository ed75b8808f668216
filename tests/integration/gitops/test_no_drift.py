"""Nothing differs from Git once it is applied, and nobody fights about a field: for kubectl, and for a GitOps tool."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from local_cluster.fixtures import temporary_namespace
from local_cluster.kubectl import Kubectl, Manifest
from support.api.random_manifests import EXAMPLES
from support.operator.fake_head import FakeHeads
from support.operator.job_phases import operating
from support.waiting import eventually

Way = tuple[str, ...]
WAYS: dict[str, Way] = {
    "kubectl": (),
    "gitops": ("--server-side", "--force-conflicts", "--field-manager=argocd-controller"),
}
OPERATOR = "rljob-operator"


@dataclass(frozen=True)
class Applied:
    """A manifest of the examples that is applied, trained and left alone."""

    kubectl: Kubectl
    namespace: str
    path: Path
    way: Way

    def __call__(self, verb: str, *options: str) -> str:
        return self.kubectl(verb, "-n", self.namespace, *self.way, "-f", str(self.path), *options)

    def raw(self) -> Manifest:
        return self.kubectl.get("-n", self.namespace, "-f", str(self.path), "--show-managed-fields")

    def version(self) -> tuple[int, str]:
        metadata = self.raw()["metadata"]
        return metadata["generation"], metadata["resourceVersion"]


@pytest.fixture(scope="module", params=WAYS)
def applied(
    request: pytest.FixtureRequest, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Path], Applied]]:
    """All examples, after an operator has written their status and ended."""
    with temporary_namespace(kubectl) as namespace:
        examples = {path: Applied(kubectl, namespace, path, WAYS[request.param]) for path in EXAMPLES}
        with operating(kubectl, namespace, FakeHeads(), tmp_path_factory.mktemp("operator")) as operator:
            for each in examples.values():
                each("apply")
            for each in examples.values():
                eventually(each.raw, lambda raw: raw["status"].get("phase") == "Training", deadline_s=120)
            assert operator.terminate() == 0
        yield examples.__getitem__


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_diff_after_apply_is_empty(applied: Callable[[Path], Applied], path: Path):
    assert applied(path)("diff") == ""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_applying_again_changes_nothing(applied: Callable[[Path], Applied], path: Path):
    example = applied(path)
    before = example.version()
    example("apply")
    example("apply")
    assert example.version() == before
    assert before[0] == 1


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_dry_run_changes_nothing_either(applied: Callable[[Path], Applied], path: Path):
    example = applied(path)
    before = example.version()
    assert "(server dry run)" in example("apply", "--dry-run=server")
    assert example.version() == before


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_operator_owns_the_status_and_others_own_the_rest(applied: Callable[[Path], Applied], path: Path):
    owned = owners(applied(path).raw())
    assert owned[OPERATOR] == {"f:status"}
    assert not [who for who, fields in owned.items() if who != OPERATOR and "f:status" in fields]


def owners(raw: Manifest) -> dict[str, set[str]]:
    """Return the top-level fields that each field manager owns something of."""
    found: dict[str, set[str]] = {}
    for entry in raw["metadata"]["managedFields"]:
        found.setdefault(entry["manager"], set()).update(entry["fieldsV1"])
    return found


def test_a_tool_that_enforces_git_and_the_operator_do_not_fight(
    kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    example = Applied(kubectl, namespace, EXAMPLES[0], WAYS["gitops"])
    with operating(kubectl, namespace, FakeHeads(), tmp_path) as operator:
        example("apply")
        eventually(example.raw, lambda raw: raw["status"].get("phase") == "Training", deadline_s=120)
        eventually(lambda: operator.log, lambda log: "reason=Running" in log)
        before, seen = example.version(), len(writes(operator.log))
        for _ in range(5):
            example("apply")
        assert example.version() == before
        assert writes(operator.log)[seen:] == []


def writes(log: str) -> list[Any]:
    """Return the lines about something that was written."""
    lines = [json.loads(line) for line in log.splitlines()]
    actions = ("action=apply", "action=delete", "action=create", "action=submit")
    return [line["message"] for line in lines if line["message"].startswith(actions)]
