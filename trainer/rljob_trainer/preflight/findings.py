"""What preflight has found."""

from collections.abc import Iterable
from dataclasses import dataclass

from rljob_api.errors import Problem


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was found; `+` puts two together."""

    problems: tuple[Problem, ...] = ()
    """what is wrong: the run would fail, or learn from something else than was meant"""
    warnings: tuple[Problem, ...] = ()
    """what is allowed and probably not meant"""
    elsewhere: tuple[str, ...] = ()
    """files and directories that are not on this machine; the run may be meant for another one"""
    unseen: tuple[str, ...] = ()
    """what could not be checked, and why"""

    def __add__(self, other: "Findings") -> "Findings":
        return Findings(
            self.problems + other.problems,
            self.warnings + other.warnings,
            self.elsewhere + other.elsewhere,
            self.unseen + other.unseen,
        )


def total(findings: Iterable[Findings]) -> Findings:
    """Return everything that was found."""
    return sum(findings, Findings())
