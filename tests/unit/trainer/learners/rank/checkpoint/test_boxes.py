"""Boxes hold a range of a tensor's numbers, in its order, and nothing else."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_trainer.learners.rank.checkpoint.boxes import Box, boxes

shapes = st.lists(st.integers(1, 6), max_size=4).map(tuple)


@settings(max_examples=300)
@given(shapes, st.data(), st.integers(1, 9) | st.just(2**24))
def test_boxes_are_the_range_in_its_order(shape: tuple[int, ...], data: st.DataObject, largest: int) -> None:
    size = prod(shape)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    whole = np.arange(size).reshape(shape)
    found = list(boxes(shape, start, stop, largest))
    numbers = [
        number
        for box in found
        for number in whole[tuple(slice(at, at + n) for at, n in zip(box.offset, box.shape, strict=True))].ravel()
    ]
    assert numbers == list(range(start, stop))
    assert all(0 < box.size <= largest for box in found)
    if largest > size:
        assert len(found) <= max(1, 2 * len(shape) - 1)


def test_a_whole_tensor_is_one_box() -> None:
    assert list(boxes((3, 4, 5), 0, 60, 100)) == [Box((0, 0, 0), (3, 4, 5))]


def test_an_end_of_a_row_full_rows_and_a_beginning_of_one() -> None:
    assert list(boxes((4, 10), 7, 32, 100)) == [Box((0, 7), (1, 3)), Box((1, 0), (2, 10)), Box((3, 0), (1, 2))]


@pytest.mark.parametrize(("largest", "rows"), [(20, [2, 2, 1]), (29, [2, 2, 1]), (10, [1] * 5), (50, [5])])
def test_large_boxes_are_cut_between_rows(largest: int, rows: list[int]) -> None:
    assert [box.shape for box in boxes((5, 10), 0, 50, largest)] == [(number, 10) for number in rows]


def test_a_row_that_is_too_large_is_cut() -> None:
    assert list(boxes((2, 10), 8, 13, 4)) == [Box((0, 8), (1, 2)), Box((1, 0), (1, 3))]
