"""One reason why pods do not fit. Values only."""

from dataclasses import dataclass
from enum import IntEnum


class Outcome(IntEnum):
    """How a job fits; the worst counts."""

    FITS = 0
    LATER = 1
    """when others free what they hold, or nodes come"""
    NEVER = 2


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What is short."""

    outcome: Outcome
    text: str
    resource: str | None = None
    """the resource that is short; None: something else is wrong"""
