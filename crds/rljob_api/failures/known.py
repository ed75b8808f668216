"""The failure that most probably ended an attempt, short enough for a status, and as a line of a driver's log. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rljob_api.failures.catalogue import catalogue
from rljob_api.failures.diagnosis import diagnose
from rljob_api.failures.entry import Level
from rljob_api.failures.occurrences import Scanned

LONGEST_EVIDENCE: Final = 300
"""[characters]"""
LINE: Final = "action=diagnose failure={code} seen={evidence}"
"""what a driver logs last: Ray keeps the end of a driver's output when the pod's files are out of reach"""
LOGGED = re.compile(r"\baction=diagnose failure=(?P<code>[A-Za-z0-9]+) seen=(?P<evidence>.*)")


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """A failure of the catalogue that was recognised."""

    code: str
    title: str
    """what one sees"""
    remedy: str
    """what helps most"""
    evidence: str
    """the line that shows it, after the name of its log"""

    @property
    def is_general(self) -> bool:
        """Whether it says less than the error itself: that a Python program failed."""
        entry = catalogue().get(self.code)
        return entry is not None and entry.general

    def __str__(self) -> str:
        return f"{self.code}: {self.title}. {self.remedy}"

    @property
    def line(self) -> str:
        """The failure as a line of a log, which `logged` reads."""
        return LINE.format(code=self.code, evidence=self.evidence)


def known_failure(logs: Sequence[Scanned]) -> KnownFailure | None:
    """Return the failure that ended the attempt whose logs these are; None: none is known.

    A failure that the attempt survived, and one that only makes a run slow, end no attempt.
    """
    found = diagnose(logs).findings
    first = next((each for each in found if each.failure.level is not Level.HINT and not each.is_earlier), None)
    if first is None:
        return None
    seen = first.evidence[0]
    return _of(first.failure.code, f"{seen.log}: {seen.text}")


def logged(output: str) -> KnownFailure | None:
    """Return the failure that a driver has logged at the end of its output; None: none, or one of a newer catalogue."""
    lines = LOGGED.findall(output)
    return _of(*lines[-1]) if lines and lines[-1][0] in catalogue() else None


def without_line(output: str) -> str:
    """Return a driver's output without the line that `logged` reads."""
    return "\n".join(line for line in output.split("\n") if not LOGGED.search(line))


def _of(code: str, evidence: str) -> KnownFailure:
    failure = catalogue()[code]
    return KnownFailure(code, failure.title, failure.remedy[0], " ".join(evidence.split())[:LONGEST_EVIDENCE].strip())
