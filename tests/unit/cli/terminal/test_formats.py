"""Small pictures made of characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_cli.terminal.formats import ASCII_SPARKS, age, rate, seconds, spark, widths

PARTS = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=1), st.floats(0.001, 1e6), min_size=1)


def test_a_spark_line_goes_from_the_lowest_to_the_highest_value() -> None:
    assert spark([0.0, 0.5, 1.0], 10) == "▁▅█"
    assert spark([0.0, 1.0], 10, ASCII_SPARKS) == "_@"


def test_a_spark_line_shows_the_newest_values() -> None:
    assert spark([9.0, 0.0, 1.0], 2) == "▁█"


@pytest.mark.parametrize(("values", "width", "expected"), [([], 5, ""), ([1.0], 0, ""), ([2.0, 2.0], 5, "▁▁")])
def test_nothing_no_room_and_no_change_can_be_drawn(values: list[float], width: int, expected: str) -> None:
    assert spark(values, width) == expected


@given(PARTS, st.integers(1, 200))
def test_a_bar_is_exactly_as_wide_as_asked(parts: dict[str, float], width: int) -> None:
    columns = widths(parts, width)
    assert sum(columns.values()) == width
    assert all(abs(columns.get(name, 0) - value / sum(parts.values()) * width) < 1 for name, value in parts.items())


def test_a_bar_of_nothing_is_empty() -> None:
    assert widths({"train": 0.0}, 10) == {}


@pytest.mark.parametrize(
    ("value", "text"), [(0.31, "0.3s"), (9.97, "10s"), (42.4, "42s"), (59.7, "1m00s"), (160, "2m40s"), (11220, "3h07m")]
)
def test_a_time_is_short(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (182.4, "182"), (61_240.0, "61.2k")])
def test_a_rate_is_short(value: float | None, text: str) -> None:
    assert rate(value) == text


@pytest.mark.parametrize(
    ("value", "expected"), [(-1, "0s"), (119.9, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (200_000, "2d")]
)
def test_an_age_is_reported_in_its_largest_unit(value: float, expected: str) -> None:
    assert age(value) == expected
