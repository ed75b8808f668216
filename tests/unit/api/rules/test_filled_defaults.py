"""An API server fills in the default of each field: no rule may take one for the wish of a user."""

from pathlib import Path

import pytest
import yaml

from rljob_api.reading.document import document
from rljob_api.reading.manifest import parse, problems

EXAMPLES = sorted((Path(__file__).parents[4] / "docs" / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_with_all_defaults_has_no_problem(path: Path) -> None:
    job = parse(document(path.read_text()))
    filled = yaml.safe_dump(job.model_dump(mode="json", by_alias=True, exclude_none=True))
    assert [str(problem) for problem in problems(filled)] == []
