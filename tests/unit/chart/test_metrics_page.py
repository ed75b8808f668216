"""The metrics: their page agrees with the registries, and their names with Prometheus' conventions."""

import re
from pathlib import Path

import pytest

from support.operator.metrics_page import Family, driver_families, markdown, operator_families
from support.tables import each_of

FAMILIES = (*driver_families(), *operator_families())
OURS = [family for family in FAMILIES if not family.name.startswith("process_")]
LABELS = {
    "namespace",
    "rljob",
    "phase",
    "reason",
    "error",
    "version",
    "verb",
    "resource",
    "code",
    "cause",
    "order",
    "state",
}
LABELS |= {"mode", "model", "task", "part", "finding", "set", "node", "gpu"}
"""each with few values, or one for each job, or for each GPU of it"""


def test_the_page_is_as_it_is_generated():
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert page.read_text() == markdown(), "run `make generate`"


@each_of(OURS, lambda family: family.name)
def test_a_metric_is_named_as_prometheus_wants_it(family: Family):
    assert re.fullmatch(r"rljob_[a-z][a-z_]*[a-z]", family.name)
    assert (family.kind == "counter") == family.name.endswith("_total")
    assert not re.search(r"_(ms|milliseconds|minutes|hours|percent|mb|mib|gib)(_|$)", family.name), "base units"
    assert set(family.labels) <= LABELS
    assert family.text


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("rljob_step_seconds", "s"),
        ("rljob_last_step_timestamp_seconds", "unix time, s"),
        ("rljob_train_tokens_total", "tokens"),
        ("rljob_tokens_per_second", "tokens/s"),
        ("process_resident_memory_bytes", "bytes"),
        ("rljob_steps_total", ""),
    ],
)
def test_the_unit_is_read_from_the_name(name: str, unit: str):
    assert next(family.unit for family in FAMILIES if family.name == name) == unit
