"""The function that a user may have meant: Python and the API server suggest the same."""

import pytest

from rljob_api.rules.names import colon_in, with_colon
from rljob_api.rules.terms import SPEC
from support.api.cel_reader import read


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a.b", "a:b"),
        ("a.b.c", "a.b:c"),
        ("a:b:c", "a.b:c"),
        ("rewards", None),
        (".a", None),
        ("a.", None),
        ("1a.b", None),
        ("a..b", None),
    ],
)
def test_a_function_without_its_colon_is_recognised(text, meant):
    (cel,) = colon_in(SPEC.reward.function).cel

    assert with_colon(text) == meant
    assert read(cel)({"self": {"reward": {"function": text}}}) == (meant or "")
