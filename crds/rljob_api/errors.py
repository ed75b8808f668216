"""The format of every problem with a manifest."""

import json
from dataclasses import dataclass
from enum import Enum

LONGEST_VALUE = 60


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
        return f"{self.field}: {value}{self.rule}{nearest}"


def shown(value: object) -> str:
    """Return the value as a manifest would write it, on one line and not too long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


class ManifestError(ValueError):
    """A manifest that cannot run, with all its problems: `ManifestError(problems)`."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self.args[0])

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)
