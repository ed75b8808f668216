"""Pages that code, charts and texts beside the site name are there, with the section that they name."""

import re
from pathlib import Path

from support.tables import each_of

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"\bdocs/((?:[a-z0-9-]+/)*[a-z0-9-]+\.md)(?:#([a-z0-9-]+))?")
FOLDERS = ("benchmarks", "charts", "crds", "operator", "trainer")
ENDINGS = {".py", ".md", ".yaml", ".tpl", ".txt"}


def named() -> list[tuple[str, str]]:
    """Return each page with the section that is named of it, or with an empty one."""
    below = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in ENDINGS)
    texts = (path.read_text() for path in (*below, *ROOT.glob("*.md"), ROOT / "Makefile"))
    return sorted({page for text in texts for page in NAMED.findall(text)})


@each_of(named(), "#".join)
def test_a_page_that_is_named_has_its_section(page: tuple[str, str]) -> None:
    name, section = page
    titles = re.findall(r"^#+ (.*)$", (ROOT / "docs" / name).read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert section in {"", *anchors}
