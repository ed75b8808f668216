"""Rectangular parts of a tensor that together hold a range of its numbers, counted row by row.

A data-parallel rank keeps the optimizer's state of such a range of each parameter, and a checkpoint stores rectangles.
The numbers of a box lie end to end in the range, so a box is a view of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    offset: tuple[int, ...]
    """of its first number, in each dimension of the tensor"""
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)


def boxes(shape: Sequence[int], start: int, stop: int, largest: int) -> Iterator[Box]:
    """Yield boxes of a tensor that hold its numbers `start` to `stop - 1`, in this order, and nothing else.

    Each holds at most `largest` numbers, at least 1. Without that bound there are at most 2 n - 1 in n dimensions.
    """
    if start >= stop:
        return
    if not shape:
        yield Box((), ())
        return
    row = prod(shape[1:])
    if row > largest:
        for index in range(start // row, -(-stop // row)):
            first = index * row
            yield from _in_row(shape, index, max(start, first) - first, min(stop, first + row) - first, largest)
        return
    full, end = -(-start // row), stop // row
    if full > end:  # begins and ends in one row
        yield from _in_row(shape, end, start - end * row, stop - end * row, largest)
        return
    if start % row:
        yield from _in_row(shape, full - 1, start % row, row, largest)
    rows = largest // row
    for index in range(full, end, rows):
        yield Box((index, *(0,) * (len(shape) - 1)), (min(rows, end - index), *shape[1:]))
    if stop % row:
        yield from _in_row(shape, end, 0, stop % row, largest)


def _in_row(shape: Sequence[int], index: int, start: int, stop: int, largest: int) -> Iterator[Box]:
    for inner in boxes(shape[1:], start, stop, largest):
        yield Box((index, *inner.offset), (1, *inner.shape))
