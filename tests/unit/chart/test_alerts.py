"""The alerts: each has a section in the runbooks, with what somebody who is woken needs."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
GROUPS = yaml.safe_load((ROOT / "charts/rljob/files/alerts.yaml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
_, *SECTIONS = (ROOT / "docs/runbooks.md").read_text().split("\n## ")
RUNBOOKS = {section.partition("\n")[0]: section for section in SECTIONS}


def test_there_is_a_runbook_for_every_alert_and_no_other():
    assert [rule["alert"] for rule in RULES] == list(RUNBOOKS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_where_and_what_to_do(rule: dict):
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["runbook_url"] == f"RUNBOOKS#{rule['alert'].lower()}"
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["annotations"]["description"].endswith(".")


@pytest.mark.parametrize("name", RUNBOOKS)
def test_a_runbook_says_meaning_impact_where_to_look_and_what_to_do(name: str):
    parts = re.findall(r"^\*\*(Meaning\.|Impact\.|Check|Fix\.)\*\*", RUNBOOKS[name], re.MULTILINE)
    assert parts == ["Meaning.", "Impact.", "Check", "Fix."]
