"""GRPO's advantages, against published formulas and reference values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.advantage import GroupRelative

rewards = st.lists(st.floats(-10, 10), min_size=1, max_size=16)


@pytest.mark.parametrize(
    ("normalize_std", "group", "expected"),
    [
        (True, (1.0, 0.0), (0.707106, -0.707106)),
        (True, (0.5, 2.0), (-0.707106, 0.707106)),
        (False, (1.0, 0.0), (0.5, -0.5)),
        (False, (0.5, 2.0), (-0.75, 0.75)),
    ],
)
def test_values_are_those_of_verl(normalize_std: bool, group: tuple[float, ...], expected: tuple[float, ...]) -> None:
    assert GroupRelative(normalize_std)(group) == pytest.approx(expected, abs=1e-6)


@given(rewards, st.booleans())
def test_advantages_of_a_group_add_up_to_zero(group: list[float], normalize_std: bool) -> None:
    assert sum(GroupRelative(normalize_std)(group)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("group", [(1.0,), (0.1, 0.1, 0.1), (0.0,) * 8])
@pytest.mark.parametrize("normalize_std", [True, False])
def test_a_group_that_agrees_teaches_nothing(group: tuple[float, ...], normalize_std: bool) -> None:
    assert GroupRelative(normalize_std)(group) == (0.0,) * len(group)


def test_an_empty_group_is_refused() -> None:
    with pytest.raises(ValueError, match="without samples"):
        GroupRelative(True)(())
