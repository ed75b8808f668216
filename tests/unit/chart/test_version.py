"""The version is written once, in pyproject.toml; all else that names one names this one."""

import re
from pathlib import Path

import pytest
import yaml

from release.steps import version
from support.operator.chart_page import CHART

ROOT = Path(__file__).parents[3]
VERSION = version(ROOT)
IMAGE = re.compile(r"rljob[/-](?:operator|trainer):(\d+\.\d+\.\d+)")
FILES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("images/*/Dockerfile"), CHART / "README.md", ROOT / "README.md"])


def test_the_chart_has_it():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_page_names_the_images_of_it(file: Path):
    assert set(IMAGE.findall(file.read_text())) <= {VERSION}


def test_pages_name_images():
    assert any(IMAGE.search(file.read_text()) for file in FILES)


def test_the_page_of_installation_names_the_chart_of_it():
    page = (ROOT / "docs" / "install.md").read_text()
    assert re.findall(r"charts/rljob --version (\S+)", page) == [VERSION]


def test_the_changelog_and_the_page_of_upgrades_have_it():
    assert f"\n## {VERSION}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## {VERSION}" in (ROOT / "docs" / "upgrade.md").read_text()
