"""Errors that end a run, and the format of every problem with a manifest."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import ClassVar

from rljob_api.exits import Exit

LONGEST_VALUE = 60
LONGEST_FIELD = 200
MOST_PROBLEMS = 20
"""of a manifest: a user reads no more at once, and the search for the nearest field takes milliseconds each"""


UNREADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""what code that reads a value of others raises for a shape that its author did not think of"""


class Absent(Enum):
    """Stands for a value that cannot be shown: of a missing or unknown field."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem, in words for the author of the manifest."""

    field: str
    """path as in the manifest, `spec.rollout.samplesPerPrompt`, or a place in the text, `line 3, column 5`"""
    value: object
    """what stands there, as YAML gave it; ABSENT when the value is not the point"""
    rule: str
    """the rest of the sentence that begins with the value"""
    nearest: str | None = None
    """what would be accepted and is closest to the value"""

    def __str__(self) -> str:
        value = "" if self.value is ABSENT else f"{shown(self.value)} "
        nearest = "" if self.nearest is None else f"; nearest valid: {self.nearest}"
        return f"{cut(self.field, LONGEST_FIELD)}: {value}{self.rule}{nearest}"


def shown(value: object) -> str:
    """Return the value as a manifest would write it, on one line and not too long."""
    return cut(json.dumps(value, ensure_ascii=False, default=str), LONGEST_VALUE)


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def first_problems(found: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the first problems, and one that says that there are more. Takes no further ones from `found`."""
    first = tuple(islice(found, MOST_PROBLEMS + 1))
    return first if len(first) <= MOST_PROBLEMS else (*first[:MOST_PROBLEMS], more())


def more(number: int | None = None) -> Problem:
    """Return the last problem of a manifest that has more than are listed; None: they are not counted."""
    many = "more problems" if number is None else f"{number} more problem{'s' * (number > 1)}"
    return Problem("manifest", ABSENT, f"has {many}; these are the first {MOST_PROBLEMS}")


class RunError(Exception):
    """An error that ends a run. Each class says, itself or by its base, what that end is for a supervisor.

    BAD_MANIFEST, BAD_INPUT and DIVERGED are never retried: they are for errors that another attempt must meet again.
    """

    exit: ClassVar[Exit]
    proven_by_steps: ClassVar[bool] = False
    """whether it is of a function or a service that the first step would have met, too"""


class ManifestError(RunError, ValueError):
    """A manifest that cannot run, with all its problems: `ManifestError(problems)`."""

    exit = Exit.BAD_MANIFEST

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self.args[0])

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)
