"""The chart's values: every one is described, typed and defaulted, and the page agrees."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.operator.chart_page import CHART, leaves, markdown
from support.tables import each_of

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
LEAVES = list(leaves(SCHEMA, SCHEMA, VALUES, ()))


def test_the_page_is_as_it_is_generated():
    page = Path(__file__).parents[3] / "docs" / "chart-values.md"
    assert page.read_text() == markdown(), "run `make generate`"


def sections(schema: dict[str, Any], values: Any, path: str = "values") -> list[tuple[str, dict[str, Any], Any]]:
    """Return (path, schema, defaults) of the top and of every section below it."""
    below = [(name, each) for name, each in schema["properties"].items() if "properties" in each]
    found = [(path, schema, values)]
    for name, each in below:
        found += sections(each, values[name], f"{path}.{name}")
    return found


@pytest.mark.parametrize(("path", "schema", "values"), sections(SCHEMA, VALUES), ids=lambda each: str(each)[:30])
def test_a_section_knows_its_values_and_refuses_others(path: str, schema: dict, values: dict):
    assert schema["additionalProperties"] is False
    assert [name for name in schema["properties"] if name != "global"] == list(values), "same names, same order"


@each_of([name for name, _, _ in LEAVES])
def test_a_value_is_described_and_typed(name: str):
    schema = next(each for found, each, _ in LEAVES if found == name)
    assert schema["description"]
    assert "type" in schema or "enum" in schema


def test_what_needs_prometheus_or_grafana_is_off():
    parts = ("podMonitors", "rules", "dashboards")
    assert not any(VALUES["monitoring"][part]["enabled"] for part in parts)
