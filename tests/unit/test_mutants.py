"""`make mutants`: the list of accepted mutants, and packages that build their values when they are imported."""

import importlib
import subprocess
import tomllib
from pathlib import Path

import pytest

MUTANTS = Path(__file__).parents[1] / "mutants"
FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["crds"]\n',
    "crds/limits/__init__.py": "MOST = 3\nTWICE = MOST * 2\nUNTESTED = True\n",
    "tests/test_limits.py": "import limits\n\ndef test_twice():\n    assert limits.TWICE == 6\n",
}


def test_every_accepted_mutant_changes_lines_that_are_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(MUTANTS)
    accepted, workspace = map(importlib.import_module, ("accepted", "workspace"))
    repository = MUTANTS.parents[1]

    def lines(module: str) -> set[str]:
        chosen = workspace.target(repository, module, ["tests"])
        (file,) = chosen.modules
        return set(map(str.strip, (repository / chosen.root / file).read_text().splitlines()))

    entries = accepted.read(repository / accepted.ACCEPTED)
    assert [entry for entry in entries if not set(entry.removed) <= lines(entry.module)] == []


def test_packages_that_are_built_at_import_are_left_out_of_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(MUTANTS)
    at_import, workspace = map(importlib.import_module, ("at_import", "workspace"))
    chosen = workspace.target(MUTANTS.parents[1], "rljob_api.sizing", ["tests"])
    assert set(chosen.modules) - set(at_import.without(chosen).modules) == {"rljob_api/sizing/known_models.py"}
    whole = workspace.target(MUTANTS.parents[1], "rljob_api", ["tests"])
    left = at_import.without(whole).modules
    assert "rljob_api/recovery.py" in left and not any("/rules/" in module for module in left)


@pytest.mark.parametrize(
    ("package", "mirror", "others"),
    [
        ("rljob_operator.queueing", "operator/queueing", {"operator/test_reconcile.py"}),
        ("rljob_trainer.rollouts", "trainer/rollouts", {"trainer/reporting/test_first_step.py"}),
        ("rljob_trainer.engines.pool", "trainer/engines", set[str]()),
        ("rljob_cli", "cli", set[str]()),
    ],
)
def test_a_package_is_judged_by_its_mirror_and_by_tests_elsewhere_that_import_it(
    package: str, mirror: str, others: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(MUTANTS)
    workspace = importlib.import_module("workspace")
    first, *further = workspace.target(MUTANTS.parents[1], package, None).tests
    assert first == f"tests/unit/{mirror}"
    assert {f"tests/unit/{each}" for each in others} <= set(further)
    assert not any(each.startswith(f"{first}/") for each in further), "once is enough"


@pytest.mark.parametrize(
    ("outcome", "codes"),
    [
        ("survived", {0}),
        ("killed", {1, 3, 24, -24, 152, -11}),
        ("not reached", {5, 33}),
        ("unknown", {None, 2, 255}),
    ],
)
def test_a_mutant_whose_tests_did_not_run_is_not_called_killed(
    monkeypatch: pytest.MonkeyPatch, outcome: str, codes: set[int | None]
) -> None:
    monkeypatch.syspath_prepend(MUTANTS)
    report = importlib.import_module("report")
    assert {report._outcome(code).value for code in codes} == {outcome}


def test_mutants_of_values_that_are_built_at_import_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(MUTANTS)
    accepted, at_import, report, workspace = map(
        importlib.import_module, ("accepted", "at_import", "report", "workspace")
    )
    for name, text in FILES.items():
        (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkout" / name).write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path / "checkout"], check=True)
    chosen = workspace.target(tmp_path / "checkout", "limits", ["tests/test_limits.py"])
    copy = workspace.lay_out(tmp_path / "checkout", chosen, tmp_path / "copy")
    settings = tomllib.loads((copy.root / "mutants/pyproject.toml").read_text())
    assert settings["tool"]["pytest"]["ini_options"] == {
        "pythonpath": ["src", "crds"],
        "disable_test_id_escaping_and_forfeit_all_rights_to_community_support": True,
    }
    monkeypatch.chdir(copy.root)

    found = at_import.judge(copy, at_import.edits(copy), verbose=False)

    outcomes = {accepted.changed_lines(mutant.diff)[1][-1]: outcome for mutant, outcome in found}
    killed, survived = report.Outcome.KILLED, report.Outcome.SURVIVED
    assert outcomes == {
        "MOST = None": killed,
        "MOST = 4": killed,
        "TWICE = None": killed,
        "TWICE = MOST / 2": killed,
        "TWICE = MOST * 3": killed,
        "UNTESTED = None": survived,
        "UNTESTED = False": survived,
    }


@pytest.mark.parametrize("content", [b"\xff{}"])
def test_a_parameter_of_bytes_has_a_name_that_pytest_can_join(request: pytest.FixtureRequest, content: bytes) -> None:
    assert request.node.callspec.id == ascii(content)
