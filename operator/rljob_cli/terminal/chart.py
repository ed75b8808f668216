"""A line chart made of characters: Braille dots, or stars where there is nothing but ASCII. Pure."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from rljob_trainer.reporting.reading.scales import Scale, label, ticks, whole_ticks

Point = tuple[float, float]

DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""bits of a Braille character, by row and column of its dot"""
BRAILLE: Final = 0x2800
GAP: Final = 1
"""columns between the axis and its numbers"""


def chart(points: Sequence[Point], width: int, height: int, ascii_only: bool = False) -> list[str]:
    """Return `height` lines of at most `width` columns and two more for the x axis; points are (step, value), by step.

    One point is a dot; lines join the others. No points: no lines.
    """
    if not points:
        return []
    low, high = min(value for _, value in points), max(value for _, value in points)
    if low == high:  # an axis from or to 0 says most about one value
        low, high = min(low, 0.0), max(high, 0.0)
    levels = ticks(low, high, max(3, height - 2))
    apart = levels[1] - levels[0]
    names = [label(level, apart) for level in levels]
    margin = max(map(len, names)) + GAP
    columns = max(10, width - margin - 1)
    first, last = points[0][0], points[-1][0]
    across, down = (1, 1) if ascii_only else (2, 4)
    x = Scale(first, last if last > first else first + 1, 0, columns * across - 1)
    y = Scale(levels[0], levels[-1], height * down - 1, 0)
    cells = _cells([(round(x(step)), round(y(value))) for step, value in points], across, down)
    rows = {
        round(Scale(levels[0], levels[-1], height - 1, 0)(level)): name
        for level, name in zip(levels, names, strict=True)
    }
    axis, corner, line = ("|", "+", "-") if ascii_only else ("┤", "└", "─")
    drawn = [
        f"{rows.get(row, ''):>{margin - GAP}}{' ' * GAP}{axis if row in rows or ascii_only else '│'}"
        + "".join(_character(cells.get((column, row), 0), ascii_only) for column in range(columns)).rstrip()
        for row in range(height)
    ]
    steps = Scale(x.low, x.high, 0, columns - 1)
    below = _steps(steps, round(first), round(last), columns)
    return [*drawn, f"{' ' * margin}{corner}{line * columns}", " " * (margin + 1) + below]


def _cells(places: Sequence[tuple[int, int]], across: int, down: int) -> dict[tuple[int, int], int]:
    """Return the dots that are set in each cell, by (column, row); `places` are in dots."""
    cells: dict[tuple[int, int], int] = {}
    for left, top in _joined(places):
        cell = left // across, top // down
        cells[cell] = cells.get(cell, 0) | DOTS[top % down][left % across]
    return cells


def _joined(places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the places and those between each and the next."""
    yield places[0]
    for (left, top), (right, bottom) in pairwise(places):
        far = max(abs(right - left), abs(bottom - top), 1)
        for i in range(1, far + 1):
            yield left + round((right - left) * i / far), top + round((bottom - top) * i / far)


def _character(bits: int, ascii_only: bool) -> str:
    if not bits:
        return " "
    return "*" if ascii_only else chr(BRAILLE + bits)


def _steps(x: Scale, first: int, last: int, columns: int) -> str:
    """Return the numbers below the axis: both ends, and round ones between where there is room."""
    text = " " * columns
    between = whole_ticks(first, last, max(3, columns // 9)) if last > first else ()
    for step in (first, last, *between):
        name = str(step)
        at = min(max(0, round(x(step)) - len(name) // 2), columns - len(name))
        if not text[max(0, at - 2) : at + len(name) + 2].strip():
            text = text[:at] + name + text[at + len(name) :]
    return text.rstrip()
