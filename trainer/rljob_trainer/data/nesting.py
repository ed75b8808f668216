"""How deep foreign JSON may be nested: what copies, compares or writes a value again goes down once a level."""

from typing import Any

MOST_LEVELS = 100
"""of lists and objects in each other: Python's own limit ends `pickle` and `json` at several hundred"""


def is_deep(value: Any) -> bool:
    """Return whether lists and objects are in each other over more levels than `MOST_LEVELS`."""
    level = [value]
    for _ in range(MOST_LEVELS):
        containers = [each for each in level if isinstance(each, dict | list)]
        if not containers:
            return False
        level = [inner for each in containers for inner in (each.values() if isinstance(each, dict) else each)]
    return any(isinstance(each, dict | list) for each in level)
