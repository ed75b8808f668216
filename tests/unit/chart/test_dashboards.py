"""The dashboards: generated, and each panel says what it shows, in which unit."""

import re

import pytest

from dashboards.files import DASHBOARDS, TARGET
from dashboards.grafana import rendered, text
from dashboards.panel import Panel
from support.operator.metrics_page import driver_families, operator_families
from support.operator.prometheus_server import Query, queries
from support.tables import each_of

PANELS = [panel for dashboard in DASHBOARDS.values() for row in dashboard.rows for panel in row.panels]
KNOWN = {family.name for family in (*driver_families(), *operator_families())}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_file_is_as_it_is_generated(name: str):
    assert (TARGET / f"{name}.json").read_text() == text(DASHBOARDS[name]), "run `make generate`"


@each_of(PANELS, lambda panel: panel.title)
def test_a_panel_says_what_it_shows_in_which_unit(panel: Panel):
    assert panel.text.endswith(".")
    assert panel.unit
    assert panel.queries


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_fill_a_grid_without_overlap(name: str):
    cells: list[tuple[int, int]] = []
    for panel in rendered(DASHBOARDS[name])["panels"]:
        grid = panel["gridPos"]
        cells += [(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


@each_of(queries(), lambda query: query.where)
def test_a_query_asks_for_metrics_that_there_are(query: Query):
    asked = set(re.findall(r"\b(?:rljob|process)_\w+(?=[{\[) ]|$)", query.text))
    assert asked
    assert {re.sub("_(bucket|sum|count)$", "", name) if name not in KNOWN else name for name in asked} <= KNOWN
