"""What YAML text means: the core schema of YAML 1.2, one document, no key twice."""

import math

import pytest

from rljob_api.errors import MOST_PROBLEMS, ManifestError
from rljob_api.reading.document import document
from rljob_api.reading.manifest import load


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-5", 2e-5),
        ("1E3", 1000.0),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("012", 12),
        ("-3", -3),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("no", "no"),
        ("on", "on"),
        ("1_000", "1_000"),
        ("10:30", "10:30"),
        ("2024-01-01", "2024-01-01"),
        ("0x10", "0x10"),
        ("'2e-5'", "2e-5"),
        ("''", ""),
    ],
)
def test_a_scalar_is_what_yaml_1_2_says(text, value):
    assert document(f"a: {text}") == {"a": value}


def test_not_a_number_is_a_number():
    assert math.isnan(document("a: .nan")["a"])


def test_anchors_and_merges_work():
    assert document("a: &a {x: 1}\nb: {<<: *a, y: 2}")["b"] == {"x": 1, "y": 2}


def test_empty_documents_around_the_one_are_no_documents():
    assert document("---\na: 1\n---\n# the end\n") == {"a": 1}


def test_all_keys_that_occur_twice_are_reported():
    with pytest.raises(ManifestError) as caught:
        document("a: 1\na: 2\nb: {c: 1, c: 2}")

    assert [problem.field for problem in caught.value.problems] == ["line 2, column 1", "line 3, column 11"]


def test_of_very_many_keys_that_occur_twice_the_first_are_reported():
    with pytest.raises(ManifestError) as caught:
        document("a: 1\n" * 1000)

    assert str(caught.value.problems[-1]) == "manifest: has more problems; these are the first 20"
    assert len(caught.value.problems) == MOST_PROBLEMS + 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1", "line 2, column 1: not YAML: while parsing a flow sequence, did not find expected ',' or ']'"),
        ("a: \x01", "character 3: not YAML: control characters are not allowed"),
        ("? [a]\n: 1", "line 1, column 3: not YAML: while constructing a mapping, found unhashable key"),
        ("a: !mine 1", "line 1, column 4: not YAML: could not determine a constructor for the tag '!mine'"),
        ("[" * 1500, "manifest: is nested too deeply"),
        ("[" * 700_000, "manifest: is nested too deeply"),
        ("- " * 700_000, "manifest: is nested too deeply"),
        ('"\\ud800"', "line 1, column 4: not YAML: while parsing a quoted scalar, found invalid Unicode character"),
        ("- 1", "manifest: [1] is not a mapping; an RLJob is expected"),
        ("", "manifest: is empty; one RLJob is expected"),
        ("a: 1\n---\nb: 1", "manifest: holds 2 documents; one RLJob is expected"),
    ],
)
def test_other_text_is_refused_in_one_problem_that_says_where(text, said):
    with pytest.raises(ManifestError) as caught:
        document(text)

    (problem,) = caught.value.problems
    assert str(problem).startswith(said)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("!!int abc", "not YAML: invalid literal"),
        ("!!float abc", "not YAML: could not convert"),
        ("!!binary aGk=", "has a value that JSON cannot represent"),
        ("!!set {a}", "has a value that JSON cannot represent"),
        ("9" * 5000, "not YAML: Exceeds the limit"),
    ],
)
def test_values_that_no_manifest_can_hold_are_refused_and_not_a_traceback(value, said):
    with pytest.raises(ManifestError, match=f"^manifest: {said}"):
        load(f"metadata: {{name: {value}}}")


def laughs(lines: int, first: str = "&a0 [x, x, x, x, x, x, x, x, x, x]") -> str:
    """Return a manifest whose every line stands for ten of the line before."""
    return "\n".join([f"a0: {first}"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, lines)])


@pytest.mark.parametrize("lines", [5, 10, 500])
def test_aliases_that_explode_are_refused_before_anything_is_built(lines):
    with pytest.raises(ManifestError, match="manifest: stands for more than 100000 values, with its aliases in full"):
        load(laughs(lines))


def test_merges_that_explode_are_refused():
    merged = "\n".join(
        ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 9)]
    )
    with pytest.raises(ManifestError, match="aliases in full"):
        document(merged)


def test_aliases_up_to_the_limit_are_read():
    found = document(laughs(4))
    assert found["a3"][9][9][9] == ["x"] * 10


@pytest.mark.parametrize(("values", "accepted"), [(100_000, True), (100_001, False)])
def test_the_limit_counts_every_value_once_more_for_each_alias(values, accepted):
    rest = values - 99_904  # 3: the mapping and its keys; 900: `a`; 1 + 110 * 900: `b` with its aliases in full
    text = f"a: &a [{', '.join(['x'] * 899)}]\nb: [{', '.join(['*a'] * 110 + ['x'] * rest)}]"
    if accepted:
        assert len(document(text)["b"]) == 110 + rest
    else:
        with pytest.raises(ManifestError, match="more than 100000 values"):
            document(text)


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: &a {b: [{c: *a}]}"])
def test_a_value_that_contains_itself_is_refused(text):
    with pytest.raises(ManifestError, match="manifest: contains itself through an alias"):
        document(text)


def test_a_text_that_no_api_server_would_keep_is_not_read():
    assert document("a: 1 #" + "x" * (1_500_000 - 6)) == {"a": 1}
    with pytest.raises(ManifestError, match="manifest: has 1500001 characters; at most 1500000"):
        document("a: 1 #" + "x" * (1_500_001 - 6))
