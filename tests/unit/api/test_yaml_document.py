"""What YAML text means: the core schema of YAML 1.2, one document, no key twice."""

import math

import pytest

from rljob_api.document import document
from rljob_api.errors import ManifestError
from rljob_api.manifest import load


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


def test_all_keys_that_occur_twice_are_told():
    with pytest.raises(ManifestError) as caught:
        document("a: 1\na: 2\nb: {c: 1, c: 2}")

    assert [problem.field for problem in caught.value.problems] == ["line 2, column 1", "line 3, column 11"]


@pytest.mark.parametrize(
    "text", ["a: [1", "a: \x01", "? [a]\n: 1", "a: !mine 1", "[" * 1500, "- 1", "", "a: 1\n---\nb: 1"]
)
def test_other_text_is_refused_in_one_problem(text):
    with pytest.raises(ManifestError) as caught:
        document(text)

    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("!!int abc", "not YAML: invalid literal"),
        ("!!float abc", "not YAML: could not convert"),
        ("!!binary aGk=", "holds what JSON has no form for"),
        ("!!set {a}", "holds what JSON has no form for"),
        ('"\\ud800"', "holds text that is not Unicode"),
        ("9" * 5000, "not YAML: Exceeds the limit"),
    ],
)
def test_values_that_no_manifest_can_hold_are_refused_and_not_a_traceback(value, said):
    with pytest.raises(ManifestError, match=said):
        load(f"metadata: {{name: {value}}}")
