"""The page of versions agrees with the locks, and other pages with it."""

import re
from pathlib import Path

from support.operator.versions_page import markdown, matrix

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_is_as_it_is_generated():
    assert (DOCS / "versions.md").read_text() == markdown(), "run `make generate`"


def test_the_page_of_installation_installs_the_kuberay_that_is_tested():
    kuberay = next(version for part, version, _ in matrix() if part == "KubeRay")
    assert set(re.findall(r"kuberay-helm/ --version (\S+?)`?\n", (DOCS / "install.md").read_text())) == {kuberay}
