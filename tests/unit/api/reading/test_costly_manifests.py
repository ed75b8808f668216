"""Manifests that are made to take long, or are as large as an API server keeps, are judged within a moment.

An answer may take 0.2 s; the limits here are generous, as a test shares its processor with others.
"""

import itertools
import json
from typing import Any

import pytest
import yaml

from rljob_api.errors import LONGEST_FIELD, MOST_PROBLEMS, Problem, first_problems
from rljob_api.reading import amount, manifest
from rljob_api.reading.field_lookup import meant
from rljob_api.reading.manifest import parse, problems
from support.api.costly_manifests import COSTLY, LARGEST, SECRET, costly
from support.processor_time import measured

SECONDS = 0.8


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> None:
    manifest._kept.__init__(manifest.MOST_KEPT)  # type: ignore[misc]


@pytest.mark.parametrize("edits", COSTLY.values(), ids=COSTLY)
def test_a_manifest_that_is_made_to_take_long_is_refused_within_a_moment(edits: dict[str, Any]) -> None:
    with measured() as spent:
        found = problems(json.dumps(costly(edits)))

    assert spent.seconds < SECONDS
    assert 0 < len(found) <= MOST_PROBLEMS + 1
    assert all(len(str(each)) < LONGEST_FIELD + 5_000 for each in found)


@pytest.mark.parametrize("edits", COSTLY.values(), ids=COSTLY)
def test_the_same_from_an_api_server_is_refused_and_remembered(edits: dict[str, Any]) -> None:
    content, found = costly(edits), []
    with measured() as spent:
        for _ in range(2):
            with pytest.raises(manifest.ManifestError) as caught:
                parse(content)
            found.append(caught.value.problems)

    assert spent.seconds < SECONDS
    assert found[0] == found[1]


@pytest.mark.parametrize("edits", LARGEST.values(), ids=LARGEST)
def test_the_largest_manifests_are_taken_within_a_moment(edits: dict[str, Any]) -> None:
    content = costly(edits)
    text = yaml.safe_dump(content)
    with measured() as spent:
        found = [problems(text), parse(content).metadata.name]

    assert spent.seconds < 2 * SECONDS
    assert found == [(), content["metadata"]["name"]]


def test_problems_are_kept_while_they_are_the_same() -> None:
    found = []
    for _ in range(2):
        with pytest.raises(manifest.ManifestError) as caught:
            parse(costly({"placement": "Nowhere"}))
        found.append(caught.value.problems)

    assert found[0] is found[1]


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        ({"runtime": {"env": dict.fromkeys(map(str, range(6_000)), "x")}}, "spec.runtime.env"),
        ({"runtime": {"env": {str(each): {"valueFrom": SECRET} for each in range(1_700)}}}, "spec.runtime.env"),
        ({"pods": {"head": {"template": [[[1] * 11_990]]}}}, "spec.pods.head"),
        ({"rollout": [{"stop": [1] * 11_990}]}, "spec.rollout"),
        (dict.fromkeys(map(str, range(6_000))), "spec"),
    ],
)
def test_a_manifest_of_too_many_values_is_refused_with_the_field_that_has_them(
    edits: dict[str, Any], field: str
) -> None:
    content = costly(edits)

    (found,) = problems(json.dumps(content))
    with pytest.raises(manifest.ManifestError) as caught:
        parse(content)

    assert found.field.startswith(field)
    assert [each.field for each in caught.value.problems] == [field]
    assert f"values or more, keys included; a whole manifest has {amount.MOST_VALUES} at most" in str(found)


def test_what_the_cluster_writes_does_not_count() -> None:
    many = [{"name": str(index), "ready": True} for index in range(8_000)]
    content = {**costly({}), "status": {"engines": many}}
    content["metadata"] = {**content["metadata"], "managedFields": many}

    assert amount.problem_of(content) is None
    assert not any("values" in str(each) for each in problems(json.dumps(content)))


def test_no_more_problems_are_looked_for_than_are_listed() -> None:
    endless = (Problem("spec", index, "is wrong") for index in itertools.count())

    found = first_problems(endless)

    assert [each.value for each in found[:-1]] == list(range(MOST_PROBLEMS))
    assert str(found[-1]) == "manifest: has more problems; these are the first 20"
    assert next(endless).value == MOST_PROBLEMS + 1


@pytest.mark.parametrize(("count", "last"), [(20, None), (21, "1 more problem"), (5_020, "5000 more problems")])
def test_fields_that_nobody_knows_are_counted(count: int, last: str | None) -> None:
    found = problems(json.dumps(costly({f"unknown{index}": 1 for index in range(count)})))

    assert len(found) == min(count, MOST_PROBLEMS) + (last is not None)
    assert last is None or str(found[-1]) == f"manifest: has {last}; these are the first 20"


def test_a_name_that_is_longer_than_any_is_compared_with_none() -> None:
    assert meant(("spec", "training"), "gpusPerNod") == "spec.training.gpusPerNode"
    assert meant(("spec", "training"), "gpusPerNode" * 10) is None
