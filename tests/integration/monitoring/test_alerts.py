"""The alerts, as promtool judges them: each fires when it should, and not when all is well."""

import subprocess
from pathlib import Path

import pytest
import yaml

from support.operator.prometheus_server import CHART

RULES = CHART / "files" / "alerts.yaml"
TESTS = Path(__file__).with_name("alerts_test.yaml")


def output(promtool: Path, *arguments: str) -> str:
    """Run promtool, and return what it says if it finds anything wrong."""
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False, cwd=TESTS.parent)
    return done.stdout + done.stderr if done.returncode else ""


def test_the_rules_are_well_formed(promtool: Path) -> None:
    assert output(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(RULES)) == ""


def test_every_alert_fires_when_it_should_and_only_then(promtool: Path) -> None:
    assert output(promtool, "test", "rules", str(TESTS)) == ""


@pytest.mark.parametrize("expected", [True, False])
def test_no_alert_is_without_a_case(expected: bool) -> None:
    """Both kinds of case are there for each: one in which it fires, and one in which it does not."""
    cases = [case for test in yaml.safe_load(TESTS.read_text())["tests"] for case in test["alert_rule_test"]]
    judged = {case["alertname"] for case in cases if bool(case.get("exp_alerts")) is expected}
    groups = yaml.safe_load(RULES.read_text())["groups"]
    assert judged == {rule["alert"] for group in groups for rule in group["rules"]}
