"""The generated pages about failures are current, and every known problem has a test or says that it is not done."""

import re
from pathlib import Path

from rljob_doctor.catalogue import catalogue
from rljob_doctor.page import pages
from support.api import failure_coverage
from support.api.failure_coverage import Provoked, Row
from support.tables import each_of

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
_, ROWS = failure_coverage.content()
each_row = each_of(ROWS, lambda row: row.number)


PROVOKED = failure_coverage.provoked()


def functions(file: Path) -> set[str]:
    return set(re.findall(r"^ *(?:async )?def (\w+)", file.read_text(), re.MULTILINE))


def test_the_pages_about_troubleshooting_are_current():
    names = {"troubleshooting.md", *(f"troubleshooting/{path.name}" for path in (DOCS / "troubleshooting").iterdir())}
    assert {name: (DOCS / name).read_text() for name in names} == pages()


def test_the_page_about_known_problems_is_current():
    assert (DOCS / "failure-coverage.md").read_text() == failure_coverage.page()


def test_a_message_can_be_searched_for_on_the_pages():
    whole = "\n".join(pages().values())
    texts = [each.text for failure in catalogue().values() for each in failure.signatures]
    assert [text for text in texts if text not in whole] == []


def test_all_problems_have_a_row():
    assert [row.number for row in ROWS] == list(range(1, 64))


@each_row
def test_a_row_has_a_test_or_says_that_it_is_not_done(row: Row):
    assert row.tests or row.missing


@each_row
def test_the_tests_of_a_row_exist(row: Row):
    split = [test.partition("::") for test in row.tests]
    absent = [
        f"{file}::{name}"
        for file, _, name in split
        if not (ROOT / "tests" / file).is_file() or (name and name not in functions(ROOT / "tests" / file))
    ]
    assert absent == []


@each_row
def test_the_diagnosis_of_a_row_exists(row: Row):
    assert not row.diagnosed or row.diagnosed in catalogue()


def test_a_source_that_is_a_row_is_one_of_the_table():
    rows = {row.number for row in ROWS}
    named = [failure.source for failure in catalogue().values() if failure.source.startswith("row ")]
    assert [source for source in named if int(source.removeprefix("row ")) not in rows] == []


def test_at_least_thirty_failures_are_provoked_in_running_jobs():
    assert len({each.failure for each in PROVOKED}) == len(PROVOKED) >= 30


@each_of(PROVOKED, lambda each: each.failure)
def test_the_test_of_a_provoked_failure_exists_and_has_its_case(each: Provoked):
    file, _, name = each.test.partition("::")
    assert name in functions(ROOT / "tests" / file)
    assert each.case in (ROOT / "tests" / file).read_text()
