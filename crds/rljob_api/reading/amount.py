"""How many values a manifest may have: rules, the webhook, and the operator at every event of the job look at each of
them. Pure.

Keys count as values. What the cluster writes does not count. Nothing here recurses, and no more is read than the limit
says.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rljob_api.errors import ABSENT, Problem
from rljob_api.reading.depth import DEEPEST

MOST_VALUES = 10_500
"""of a manifest. 1,000 variables that all come from Secrets have 8,000"""
MOST_NAMED = 3
"""parts of the path to the field with too many values"""

Place = tuple[str | int, ...]


def problem_of(content: Any) -> Problem | None:
    """Return the problem of a manifest with too many values; None: it has not.

    Levels that no manifest may have (`depth.py`) are not counted.
    """
    amount = Amount()
    level: list[tuple[Place, Any]] = [((), content)]
    for _ in range(DEEPEST):
        below: list[tuple[Place, Any]] = []
        for place, value in level:
            amount.add(place, 2 * len(value) if isinstance(value, dict) else len(value))
            if amount.is_too_much:
                return amount.problem
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            below += [
                ((*place, key)[:MOST_NAMED], part) for key, part in parts if isinstance(part, dict | list | tuple)
            ]
        level = [each for each in below if not is_of_the_cluster(each[0])]
    return None


def is_of_the_cluster(place: Sequence[str | int]) -> bool:
    """Return whether the cluster writes what is there, in an object that `kubectl get -o yaml` shows."""
    return tuple(place[:1]) == ("status",) or tuple(place[:2]) == ("metadata", "managedFields")


class Amount:
    """Counts values."""

    def __init__(self) -> None:
        self._values = 0
        self._by_field: Counter[Place] = Counter()

    def add(self, place: Place, values: int) -> None:
        """Count values at or below a place, of which the first parts are given."""
        self._values += values
        self._by_field[place] += values

    @property
    def is_too_much(self) -> bool:
        return self._values > MOST_VALUES

    @property
    def problem(self) -> Problem:
        """The problem, with the field that has the most values of all that were counted."""
        ((place, values),) = self._by_field.most_common(1)
        field = ".".join(part for part in place if isinstance(part, str)) or "manifest"
        number = f"has {values} values or more, keys included"
        return Problem(field, ABSENT, f"{number}; a whole manifest has {MOST_VALUES} at most")
