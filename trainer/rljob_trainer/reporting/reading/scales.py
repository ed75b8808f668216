"""From data to positions and labels on an axis. Pure arithmetic for `plots.py`."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NEGLIGIBLE = 1e-9
"""of a value: means of equal numbers differ by their rounding, and no tick lies between them"""
_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear map from [low, high] to [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """Return at most `most` round numbers, 1, 2 or 5 times a power of ten apart, that cover [low, high].

    The first is at or below `low`, the last at or above `high`.
    """
    if high - low <= NEGLIGIBLE * max(abs(low), abs(high)):
        low, high = (low - 0.5, high + 0.5) if low else (0.0, 1.0)
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    factors = iter((1, 2, 5, 10, 20, 50, 100))
    while True:
        width = step * next(factors)
        # Rounded first: 0.3 / 0.1 is 2.9999999999999996.
        first, last = math.floor(round(low / width, 6)), math.ceil(round(high / width, 6))
        if last - first < most:
            return tuple(index * width for index in range(first, last + 1))


def whole_ticks(low: int, high: int, most: int) -> tuple[int, ...]:
    """Return round whole numbers within [low, high], for an axis of steps."""
    return tuple(int(tick) for tick in ticks(low, high, most) if tick == int(tick) and low <= tick <= high)


def label(value: float, width: float = 0.0) -> str:
    """Return a short text for a number: three significant digits, or as many decimals as ticks `width` apart need."""
    for size, suffix in _SUFFIXES:
        if abs(value) >= 10 * size or (width and abs(value) >= size and width >= size / 10):
            return f"{_trimmed(value / size, width / size)}{suffix}"
    if value and abs(value) < 1e-3 and not width >= 1e-3:
        return f"{value:.2g}".replace("e-0", "e-")
    return _trimmed(value, width)


def bounds(values: Iterable[float | None]) -> tuple[float, float] | None:
    """Return the smallest and largest value; None when there is none."""
    finite = [value for value in values if value is not None]
    return (min(finite), max(finite)) if finite else None


def moving_average(values: Sequence[float | None], window: int) -> tuple[float | None, ...]:
    """Return at each place the mean of the last `window` values there are; None where there is none."""
    averages: list[float | None] = []
    for end in range(1, len(values) + 1):
        seen = [value for value in values[max(0, end - window) : end] if value is not None]
        averages.append(sum(seen) / len(seen) if seen else None)
    return tuple(averages)


def _trimmed(value: float, width: float) -> str:
    if width:
        decimals = max(0, -math.floor(math.log10(width) + 1e-9))
    else:
        decimals = 0 if not value else max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text and not width else text
