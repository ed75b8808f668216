"""The operator's pages name what there is: every condition, phase and permission."""

import re
from pathlib import Path

import pytest

from rljob_api.status import ConditionType, Phase
from rljob_operator.installation import AGENT_SANDBOX, KUEUE, RIGHTS, Project

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "operator.md").read_text()
PERMISSIONS = (DOCS / "permissions.md").read_text()


def rows(page: str, title: str) -> set[str]:
    """Return the first cells of the tables below a heading."""
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]
    return {name for cell in cells for name in cell.replace("`", "").split(", ")} - {"---"}


def test_the_page_names_every_condition():
    assert rows(PAGE, "Conditions") - {"condition"} == {str(kind) for kind in ConditionType}


def test_the_page_names_every_phase():
    assert rows(PAGE, "Phases") - {"phase"} == {str(phase) for phase in Phase}


@pytest.mark.parametrize(("resource", "verbs"), [(resource, verbs) for _, resource, verbs in RIGHTS])
def test_the_page_gives_each_permission_a_reason(resource: str, verbs: tuple[str, ...]):
    (row,) = (line for line in PERMISSIONS.splitlines() if line.startswith(f"| `{resource}` | {', '.join(verbs)} | "))
    assert len(row.split("|")[3].strip()) > 10


@pytest.mark.parametrize(("value", "project"), [("kueue.enabled", KUEUE), ("agentSandbox.enabled", AGENT_SANDBOX)])
def test_the_page_gives_each_permission_for_another_project(value: str, project: Project):
    text = " ".join(PERMISSIONS.split())
    for _, resource, verbs in project.rights:
        *first, last = verbs
        listed = f"{', '.join(first)} and {last}"
        assert re.search(rf"With the value `{value}` the operator may also {listed} (Kueue's )?`{resource}`", text)


def test_the_page_names_no_permission_that_the_operator_lacks():
    assert rows(PERMISSIONS, "Permissions of the operator") - {"resource"} == {resource for _, resource, _ in RIGHTS}
