"""Long lists in messages."""

from collections.abc import Sequence


def some(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first names, and how many there are beside them: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{separator.join(names[:most])}{more}"
