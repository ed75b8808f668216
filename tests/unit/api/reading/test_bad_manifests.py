"""Every entry of the table of bad manifests, and the page that is made of it."""

from pathlib import Path

from rljob_api.reading.manifest import load, problems
from support.api.bad_manifests import Case, cases, page, table
from support.tables import each_of

PAGE = Path(__file__).parents[4] / "docs" / "bad-manifests.md"


def test_the_manifest_that_the_table_edits_is_valid():
    assert load(table()["good"]).metadata.name == "arithmetic"


@each_of(cases(), lambda case: case.name)
def test_a_bad_manifest_is_refused_with_exactly_these_words(case: Case):
    assert tuple(str(problem) for problem in problems(case.text)) == case.says


def test_the_table_has_no_manifest_twice():
    texts = [case.text for case in cases()]

    assert len(texts) == len(set(texts)) >= 40


def test_the_page_of_bad_manifests_is_current():
    assert PAGE.read_text() == page(), "make generate"
