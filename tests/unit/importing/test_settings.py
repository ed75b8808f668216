"""Settings in YAML: each value by its dotted name, with its line, and references followed."""

import pytest

from rljob_importing.settings import SettingsError, followed, from_yaml, items, merged
from rljob_importing.words import Given, Word


def words(text: str) -> dict[str, str]:
    return {given.name: given.text for given in followed(from_yaml(text))}


def reasons(text: str) -> dict[str, tuple[str, ...]]:
    return {given.name: given.unknown for given in followed(from_yaml(text)) if given.unknown}


def test_a_setting_has_a_dotted_name_its_values_and_its_line():
    text = "a:\n  b: 1\n  c: [x, 2]\n  d: null\n  e: []\nf: {g: true}\n"

    assert from_yaml(text, "c.yaml") == (
        Given("a.b", (Word("1", 2, "c.yaml"),), "a.b: 1", 2, "c.yaml"),
        Given("a.c", (Word("x", 3, "c.yaml"), Word("2", 3, "c.yaml")), "a.c: [x, 2]", 3, "c.yaml"),
        Given("a.e", (), "a.e: []", 5, "c.yaml"),
        Given("f.g", (Word("true", 6, "c.yaml"),), "f.g: true", 6, "c.yaml"),
    )


def test_a_list_of_mappings_is_no_setting():
    assert from_yaml("a: [{b: 1}]\nc: 2\n") == (Given("c", (Word("2", 2),), "c: 2", 2),)


@pytest.mark.parametrize(("text", "says"), [("a: [", "not YAML: "), ("- a\n", "not a mapping"), ("", "not a mapping")])
def test_what_is_no_mapping_is_refused(text: str, says: str):
    with pytest.raises(SettingsError, match=says):
        from_yaml(text)


@pytest.mark.parametrize(
    ("value", "text", "unknown"),
    [
        ("${a.b}", "1", ()),
        ("x-${a.b}-${c}", "x-1-1", ()),
        ("${nothing}", "${nothing}", ("${nothing} is not evaluated",)),
        ("${mul:${a.b}, 4}", "${mul:1, 4}", ("${mul:1, 4} is not evaluated",)),
        ("${z}", "${z}", ("${z} is not evaluated",)),
    ],
)
def test_references_are_followed_and_other_interpolations_named(value: str, text: str, unknown: tuple[str, ...]):
    given = f"a: {{b: 1}}\nc: '${{a.b}}'\nz: '{value}'\n"

    assert words(given)["z"] == text
    assert reasons(given).get("z", ()) == unknown


def test_of_two_layers_the_later_one_counts():
    below, above = from_yaml("a: 1\nb: 2\n"), from_yaml("b: 3\nc: 4\n")

    assert {given.name: given.text for given in merged(below, above)} == {"a": "1", "b": "3", "c": "4"}


@pytest.mark.parametrize(
    ("texts", "entries"),
    [
        (("['a.parquet', \"b c\", d]",), ("a.parquet", "b c", "d")),
        (("[]",), ()),
        (("a.parquet",), ("a.parquet",)),
        (("a,b",), ("a,b",)),
        (("[x", "y]"), ("[x", "y]")),
        ((), ()),
    ],
)
def test_the_entries_of_a_list_are_those_that_hydra_reads(texts: tuple[str, ...], entries: tuple[str, ...]):
    assert items(Given("a", tuple(Word(text, 1) for text in texts), "a", 1)) == entries


ALIASES = "a0: &a0 {x: 1, y: 1}\n" + "".join(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}\n" for i in range(1, 40))
LONG = "x" * 50_000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ALIASES, "stands for more than 100000 values"),
        ("a: &a {b: *a}", "contains itself"),
        (f"a: &a {LONG}\nb: [{'*a,' * 5_000}]", "line 2: stands for more than 16777216 characters"),
        (f"a: &a {LONG}\n" + "".join(f"b{i}: *a\n" for i in range(400)), "stands for more than 16777216 characters"),
        ("? " + "k" * 1_001 + "\n: 1", "line 2: a name has more than 1000 characters"),
        ("x" * 150_000, "has 150000 characters"),
        ("a: " + "[" * 1_500, "not YAML"),
    ],
)
def test_a_configuration_that_stands_for_too_much_is_refused(text: str, says: str):
    with pytest.raises(SettingsError, match=says):
        from_yaml(text)


@pytest.mark.parametrize(
    "text",
    [
        f"a0: {LONG}\na1: '{'${a0}' * 10_000}'\n",
        f"a0: {LONG}\n" + "".join(f"a{i}: ${{a0}}\n" for i in range(1, 3_000)),
        "a0: xxxxxxxxxx\n" + "".join(f"a{i}: ${{a{i - 1}}}${{a{i - 1}}}\n" for i in range(1, 60)),
    ],
)
def test_references_stop_where_values_become_too_long(text: str):
    found = followed(from_yaml(text))
    assert sum(len(given.text) for given in found) < 2**25
    assert found[-1].unknown


@pytest.mark.parametrize(
    ("reference", "value"),
    [("${..c}", "1"), ("${.d}", "2"), ("${b.d}", "2"), ("${...c}", "${...c}"), ("x${.d}y", "x2y")],
)
def test_a_reference_with_dots_is_relative_to_its_setting(reference: str, value: str):
    found = followed(from_yaml(f"c: 1\nb: {{d: 2, e: '{reference}'}}\n"))
    assert found[-1].text == value
