"""Pages, messages, docstrings and comments have plain words; see "Plain English" in CONTRIBUTING."""

import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from support.tables import each_of

ROOT = Path(__file__).parents[2]
PLAINER = {
    "nobody": "no user, no process",
    "somebody": "a user, another program",
    "everybody|everyone|anybody|anyone": "all users, any pod",
    "whoever": "a user who",
    "whatever": "any, even if, regardless of",
    "so many": "this number of",
    r"of (its|his|her|their|our|your) own(?=[^\w ]|$| (and|are|at|for|has|have|in|is|or|than|to|which|with)\b)": (
        "a separate …, its own …, another …"
    ),
    r"(?<!there )(?<!way )(?<!`)is no (?!fewer|larger|less|longer|more|need|shorter|stricter|such)\w+": "is not a",
    "(do|does) not go with": "cannot be combined with",
    "(send|sends|sending|sent) away": "preempt",
    "what an? (manifest|job) comes to": "what it needs",
    "worth a word": "reported",
    "(be|is) had": "be loaded, be read",
    "as good as": "equal to",
    "(goes|went) on(?= with| after| by itself|[.,;])": "continues, resumes",
    "(nothing|none|queue|model) of ours": "of rljob",
    "strangers?": "foreign",
}
"""what to write instead of a pattern"""
PLAINER_ON_PAGES = PLAINER | {"tells?|told": "report, log, return, print"}
"""code has files with a `tell`"""

PACKAGES = ("crds", "operator", "trainer", "charts")
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "crds").glob("*.yaml"),
        *(ROOT / "operator").rglob("*.yaml"),
        *(path for ending in ("md", "yaml", "tpl", "txt") for path in (ROOT / "charts").rglob(f"*.{ending}")),
    ]
)
PROSE = {"STRING", "FSTRING_MIDDLE", "COMMENT"}


@each_of(PAGES, lambda path: str(path.relative_to(ROOT)))
def test_a_page_has_plain_words(path: Path) -> None:
    lines = enumerate(path.read_text().splitlines(), start=1)

    assert [found for line, text in lines for found in _found(path, line, text, PLAINER_ON_PAGES)] == []


@each_of(PACKAGES)
def test_code_has_plain_words(package: str) -> None:
    modules = ((path, _prose(path.read_text())) for path in sorted((ROOT / package).rglob("*.py")))

    assert [
        found for path, prose in modules for line, text in prose for found in _found(path, line, text, PLAINER)
    ] == []


@each_of(
    [
        ('"""Let nobody\n    in."""', "nobody"),
        ('say("Whatever", it)', "Whatever"),
        ('f"{a} of its own"', "of its own"),
        ("# a process of its\n# own", "of its own"),
        ("nobody = 65534  # samples of its own weights", None),
    ]
)
def test_strings_and_comments_are_prose(source: str, word: str | None) -> None:
    found = [each for line, text in _prose(source) for each in _found(Path("a.py"), line, text, PLAINER)]

    assert [each.split('"')[1] for each in found] == [word] * (word is not None)


def _found(path: Path, line: int, text: str, plainer: Mapping[str, str]) -> Iterator[str]:
    """Yield what to write instead of each word that has a plainer one."""
    for pattern, plain in plainer.items():
        for found in re.finditer(rf"\b(?:{pattern})(?!\w)", " ".join(text.split()), re.IGNORECASE):
            yield f'{path}:{line}: "{found[0]}": write {plain}'


def _prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield strings and comments, with their line; comments of several lines and adjacent strings are one text."""
    tokens = (each for each in tokenize.generate_tokens(io.StringIO(source).readline) if each.type != tokenize.NL)
    for kind, group in groupby(tokens, key=lambda token: tokenize.tok_name[token.type]):
        if kind in PROSE:
            first, *others = group
            yield first.start[0], " ".join(each.string.lstrip("# ") for each in (first, *others))
