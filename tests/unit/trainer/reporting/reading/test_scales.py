"""Axes: round numbers that cover the data, labels that fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.reporting.reading.scales import Scale, label, moving_average, ticks, whole_ticks

NUMBERS = st.floats(-1e12, 1e12, allow_nan=False).filter(lambda value: value == 0 or abs(value) > 1e-9)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (0.0, 0.3, (0.0, 0.1, 0.2, 0.3)),
        (-0.027, 0.018, (-0.03, -0.02, -0.01, 0.0, 0.01, 0.02)),
        (0.0, 2700.0, (0.0, 1000.0, 2000.0, 3000.0)),
    ],
)
def test_ticks_are_round_and_cover_the_data(low: float, high: float, expected: tuple[float, ...]) -> None:
    assert ticks(low, high, 6) == pytest.approx(expected)


@given(NUMBERS, NUMBERS)
def test_ticks_of_any_data_are_few_and_cover_it(one: float, other: float) -> None:
    low, high = sorted((one, other))
    found = ticks(low, high, 6)
    slack = 1e-6 * max(1e-9, found[1] - found[0])
    assert 2 <= len(found) <= 7
    assert found[0] <= low + slack
    assert found[-1] >= high - slack


def test_numbers_that_differ_by_their_rounding_have_ticks_around_them() -> None:
    first, *_, last = ticks(1.7947059698247325, 1.794705969824733, 6)
    assert first < 1.79 < last


def test_steps_have_whole_ticks_inside_the_run() -> None:
    assert whole_ticks(1, 36, 8) == (10, 20, 30)
    assert whole_ticks(1, 3, 8) == (1, 2, 3)


@pytest.mark.parametrize(
    ("value", "width", "expected"),
    [
        (0.5, 0.0, "0.5"),
        (0.0, 0.2, "0.0"),
        (-0.0032, 0.001, "-0.003"),
        (2358.0, 0.0, "2358"),
        (3000.0, 1000.0, "3k"),
        (2358.0, 100.0, "2.4k"),
        (12_345.0, 0.0, "12.3k"),
        (2e-5, 0.0, "2e-5"),
        (0.0, 0.0, "0"),
    ],
)
def test_a_label_is_short_and_exact_enough(value: float, width: float, expected: str) -> None:
    assert label(value, width) == expected


def test_a_scale_maps_its_ends() -> None:
    scale = Scale(10.0, 20.0, 200.0, 0.0)
    assert (scale(10.0), scale(15.0), scale(20.0)) == (200.0, 100.0, 0.0)


def test_a_moving_average_looks_back_only_and_skips_gaps() -> None:
    assert moving_average([1.0, 3.0, None, 5.0], window=2) == (1.0, 2.0, 3.0, 5.0)
    assert moving_average([None], window=2) == (None,)
