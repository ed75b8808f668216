"""How deep a manifest may be nested."""

import json
from typing import Any

import pytest
import yaml

from rljob_api.errors import ManifestError
from rljob_api.reading.depth import DEEPEST, DEEPEST_OBJECT, shallow, too_deep
from rljob_api.reading.manifest import parse


def nested(depth: int) -> Any:
    value: Any = 1
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


def test_a_value_of_64_levels_is_no_deeper_than_64() -> None:
    assert too_deep(nested(64), 64) is None
    assert too_deep(nested(65), 64) is not None


def test_the_place_is_the_way_to_what_is_too_deep() -> None:
    assert too_deep({"a": 1, "b": [2, {"c": [3]}]}, 3) == ("b", 1, "c")


@pytest.mark.parametrize("value", [1, None, "text", [], {}, [[]], {"a": {}}])
def test_flat_values_are_never_too_deep(value: Any) -> None:
    assert too_deep(value, 2) is None
    assert shallow(value) is value


def test_values_that_share_their_parts_cost_no_more_than_their_parts() -> None:
    value: Any = [1]
    for _ in range(1_000):
        value = [value, value]
    assert too_deep(value) is not None
    contains_itself: list[Any] = []
    contains_itself.append(contains_itself)
    assert too_deep(contains_itself) is not None


@pytest.mark.parametrize("depth", [1, 99, 100, 101, 5_000])
def test_a_shallow_copy_keeps_all_that_is_not_too_deep(depth: int) -> None:
    given = {"kept": nested(5), "deep": nested(depth), "too": "text"}
    found = shallow(given)
    assert {**found, "deep": None} == {**given, "deep": None}
    assert too_deep(found, DEEPEST_OBJECT) is None
    assert (found is given) == (depth < DEEPEST_OBJECT)
    assert depth < DEEPEST_OBJECT or too_deep(found, DEEPEST_OBJECT - 1) is not None, "it still shows"


@pytest.mark.parametrize("depth", [DEEPEST, 300, 900, 1_200, 9_000])
def test_a_manifest_that_is_nested_too_deep_is_refused_with_its_field(good: str, depth: int) -> None:
    manifest = yaml.safe_load(good)
    manifest["spec"]["extraArgs"] = {"sglang": {"json-model-override-args": nested(depth)}}
    with pytest.raises(ManifestError) as refused:
        parse(manifest)
    (problem,) = refused.value.problems
    assert problem.field.startswith("spec.extraArgs.sglang.json-model-override-args")
    assert str(problem).endswith(": is nested deeper than 64 levels")
    json.dumps(str(problem))
