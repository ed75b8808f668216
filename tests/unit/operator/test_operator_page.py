"""The operator's page names what there is: every condition, every phase, every series."""

from pathlib import Path

from rljob_api.status import ConditionType, Phase
from rljob_operator.cache import Cache
from rljob_operator.metrics import Metrics
from rljob_operator.pulse import Pulse
from rljob_operator.workqueue import WorkQueue

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


def test_the_page_names_every_series():
    metrics = Metrics(Cache(), WorkQueue(lambda: 0.0), Pulse(lambda: 0.0))
    families = [line.split()[2] for line in metrics.text().decode().splitlines() if line.startswith("# TYPE")]
    own = {name for name in families if not name.endswith("_created")}
    assert {name.partition("{")[0] for name in rows("The operator itself")} - {"series"} == own
