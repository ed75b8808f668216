"""A value of the wrong type is answered with the value that was meant."""

import pytest
import yaml

from rljob_api.rules.intended_value import intended


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("8", "integer", 8),
        ("-8", "integer", -8),
        (8.0, "integer", 8),
        ("123456789012345678", "integer", 123456789012345678),
        ("0.5", "number", 0.5),
        ("1e-5", "number", None),
        ("yes", "boolean", True),
        ("True", "boolean", True),
        ("off", "boolean", False),
        (0, "boolean", False),
        (True, "string", "true"),
        (1.5, "string", "1.5"),
        (8, "string", "8"),
        ("stop", "list", ["stop"]),
        (7, "list", [7]),
    ],
)
def test_the_value_that_was_meant_is_written_as_yaml(value: object, kind: str, expected: object):
    written = intended(value, kind)
    assert written is not None
    assert expected is None or yaml.safe_load(written) == expected


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("8.5", "integer"),
        ("1234567890123456789", "integer"),
        (True, "integer"),
        ("fast", "number"),
        ("maybe", "boolean"),
        ("text", "string"),
        ({"a": 1}, "string"),
        ({"a": 1}, "list"),
        (1.5, "list"),
        ("8", "quantity"),
    ],
)
def test_where_nothing_is_obvious_there_is_no_guess(value: object, kind: str):
    assert intended(value, kind) is None
