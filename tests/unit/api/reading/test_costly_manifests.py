"""Manifests that are made to take long: each is as large as an API server keeps, and is refused within a moment.

The limits of time are generous: each of these took 5 s to 60 s when every problem was searched for what was meant.
"""

import copy
import itertools
import json
import random
import string
import time
from typing import Any

import pytest
import yaml

from rljob_api.errors import LONGEST_FIELD, MOST_PROBLEMS, Problem, first_problems
from rljob_api.reading import manifest
from rljob_api.reading.field_lookup import meant
from rljob_api.reading.manifest import parse, problems
from support.api.bad_manifests import table

GOOD = yaml.safe_load(table()["good"])
WORDS = ["".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4)][::3]
SECONDS = 4.0


def anagrams(count: int, word: str) -> list[str]:
    mixed = random.Random(1)
    return list({"".join(mixed.sample(word, len(word))): None for _ in range(2 * count)})[:count]


def ones(names: list[str]) -> dict[str, int]:
    return dict.fromkeys(names, 1)


CONTAINER = anagrams(900, "terminationgraceperiodseconds")
COSTLY = {
    "unknown fields": {f"unknownField{index}": index for index in range(40_000)},
    "unknown fields that resemble known ones": {"training": ones(anagrams(4_000, "stepsperrolloutmaxtokenspergpu"))},
    "unknown arguments": {"extraArgs": {"sglang": ones(WORDS[:1000]), "megatron": ones(WORDS[:1000])}},
    "unknown fields of containers": {
        "pods": {
            "head": {"template": {"spec": {"containers": [{"name": f"c{i}", **ones(CONTAINER)} for i in range(40)]}}}
        }
    },
    "a long name": {"extraArgs": {"sglang": {"context-length-" * 60_000: 1}}},
    "a long name of a field": {"trainin" + "g" * 1_000_000: 1},
    "a long option": {"placement": "Colocated" * 100_000},
    "a long amount": {"runtime": {"headResources": {"limits": {"cpu": "1" * 1_000_000 + "x"}}}},
    "a long amount with spaces": {"runtime": {"headResources": {"limits": {"cpu": "1" * 500_000 + " " * 500_000}}}},
    "a long number": {"training": {**GOOD["spec"]["training"], "steps": "1" * 1_000_000 + "x"}},
    "a long list for a number": {"training": {**GOOD["spec"]["training"], "steps": [1] * 300_000}},
    "settings of a task": {
        "data": {"train": {"reasoningGym": {"task": "chain_sum", "size": 9, "config": ones(WORDS[:1000])}}}
    },
}


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> None:
    manifest._kept.__init__(manifest.MOST_KEPT)  # type: ignore[misc]


def costly(edits: dict[str, Any]) -> dict[str, Any]:
    return {**copy.deepcopy(GOOD), "spec": {**GOOD["spec"], **edits}}


@pytest.mark.parametrize("edits", COSTLY.values(), ids=COSTLY)
def test_a_manifest_that_is_made_to_take_long_is_refused_within_a_moment(edits: dict[str, Any]) -> None:
    begun = time.process_time()
    found = problems(json.dumps(costly(edits)))

    assert time.process_time() - begun < 3 * SECONDS  # most of it is reading YAML
    assert 0 < len(found) <= MOST_PROBLEMS + 1
    assert all(len(str(each)) < LONGEST_FIELD + 5_000 for each in found)


@pytest.mark.parametrize("edits", COSTLY.values(), ids=COSTLY)
def test_the_same_from_an_api_server_is_refused_and_remembered(edits: dict[str, Any]) -> None:
    content, found = costly(edits), []
    begun = time.process_time()
    for _ in range(2):
        with pytest.raises(manifest.ManifestError) as caught:
            parse(content)
        found.append(caught.value.problems)

    assert time.process_time() - begun < SECONDS
    assert found[0] is found[1]


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
