"""The operator's page names what there is: every condition and every phase."""

from pathlib import Path

from rljob_api.status import ConditionType, Phase

PAGE = (Path(__file__).parents[3] / "docs" / "operator.md").read_text()
NOT_YET = {"QuotaReserved", "Queued"}
"""what no operator writes yet"""


def rows(title: str) -> set[str]:
    """Return the first cells of the tables below a heading."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]
    return {name for cell in cells for name in cell.replace("`", "").split(", ")} - {"---"}


def test_the_page_names_every_condition():
    assert rows("Conditions") - {"condition"} == {str(kind) for kind in ConditionType} - NOT_YET


def test_the_page_names_every_phase():
    assert rows("From one state to the next") - {"phase"} == {str(phase) for phase in Phase} - NOT_YET
