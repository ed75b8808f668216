"""CEL that is written by hand, by the second reader of CEL: the search for the nearest valid number, and its words."""

import pytest

from rljob_api.rules.cel import near, tail
from support.api.cel_reader import read


@pytest.mark.parametrize(
    ("seed", "found"),
    [
        (5, "seed 4 or 8"),
        (4, "seed 8"),
        (7, "seed 4 or 8"),
        (8, "seed 4"),
        (9, "seed 8"),
        (2, "seed 4"),
        (40, "seed 8"),
        (41, ""),
    ],
)
def test_the_nearest_valid_numbers_are_found_within_bounds_and_reach(seed, found):
    assert read(near("seed", "self.seed", "v % 4 == 0", 4, 8))({"self": {"seed": seed}}) == found


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (("a 1", "b 2"), "; nearest valid: a 1, or b 2"),
        (("", "b 2"), "; nearest valid: b 2"),
        (("a 1", ""), "; nearest valid: a 1"),
        (("", ""), ""),
    ],
)
def test_only_what_was_found_is_suggested(texts, said):
    (cel,) = tail(tuple(f"'{text}'" for text in texts))

    assert read(cel)({}) == said


def test_without_a_search_nothing_is_added():
    assert tail(()) == []
