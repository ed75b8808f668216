"""Pages that users read avoid words for which plainer ones exist; see "Plain English" in CONTRIBUTING."""

import re
from pathlib import Path

from support.tables import each_of

ROOT = Path(__file__).parents[2]
PLAINER = {
    "tell, tells, told": "report, log, return, print",
    "whoever": "a user who",
    "nobody": "no user, no process",
    "somebody": "a user, another program",
}
PATTERN = re.compile(rf"\b({'|'.join(', '.join(PLAINER).split(', '))})\b", re.IGNORECASE)
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "charts").rglob("*.md"),
        *(ROOT / "charts").rglob("values.yaml"),
        *(ROOT / "crds").glob("*.yaml"),
    ]
)


@each_of(PAGES, lambda path: str(path.relative_to(ROOT)))
def test_a_page_has_plain_words(path: Path) -> None:
    lines = enumerate(path.read_text().splitlines(), start=1)

    assert [f"{path}:{number}: {line.strip()}" for number, line in lines if PATTERN.search(line)] == []
