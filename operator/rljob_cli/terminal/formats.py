"""Small pictures made of characters: spark lines, proportional bars, durations; words and foreign text. Pure."""

import json
from collections.abc import Mapping, Sequence

SPARKS = "▁▂▃▄▅▆▇█"
ASCII_SPARKS = "_.-=+*#@"


def spark(values: Sequence[float], width: int, marks: str = SPARKS) -> str:
    """Return the last `width` values as one character each, from the lowest to the highest of them."""
    shown = values[-width:] if width > 0 else ()
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if high == low:
        return marks[0] * len(shown)
    return "".join(marks[round((value - low) / (high - low) * (len(marks) - 1))] for value in shown)


def widths(parts: Mapping[str, float], width: int) -> dict[str, int]:
    """Return whole columns for each part, in proportion, that add up to `width`; parts too small get none."""
    total = sum(parts.values())
    if total <= 0:
        return {}
    exact = {name: value / total * width for name, value in parts.items()}
    columns = {name: int(value) for name, value in exact.items()}
    missing = width - sum(columns.values())
    for name in sorted(exact, key=lambda name: columns[name] - exact[name])[:missing]:
        columns[name] += 1
    return {name: count for name, count in columns.items() if count}


def seconds(value: float) -> str:
    """Return a time in a few characters: 0.3s, 42s, 2m05s, 3h07m."""
    if value < 9.95:
        return f"{value:.1f}s"
    if value < 59.5:
        return f"{value:.0f}s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def rate(value: float | None) -> str:
    """Return tokens per second in a few characters."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value < 10_000 else f"{value / 1000:.1f}k"


def age(value: float) -> str:
    """Return a long time in its largest unit, as kubectl does: 42s, 12m, 3h, 5d."""
    whole = max(0, int(value))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def size(num_bytes: int) -> str:
    """Return a size in words: `257.3 MiB`."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} B"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number of things: `1 run`, `2 runs`; `many` where an s is not enough."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def visible(text: str) -> str:
    """Return text that a terminal shows as it is: lines stay lines, other controls become escapes."""
    return "".join(char if char == "\n" or char.isprintable() else ascii(char)[1:-1] for char in text)


def one_line(text: str) -> str:
    """Return text in one line, its quotes, breaks and controls as JSON escapes them."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
