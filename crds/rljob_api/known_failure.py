"""What a status, a run and a driver's log say of a known failure. The doctor (`rljob_doctor`) recognises them. Pure."""

import re
from dataclasses import dataclass
from typing import Final

LINE: Final = "action=diagnose failure={code} seen={evidence}"
"""what a driver logs last: Ray keeps the end of a driver's output when the pod's files are out of reach"""
LOGGED: Final = re.compile(r"\baction=diagnose failure=(?P<code>[A-Za-z0-9]+) seen=(?P<evidence>.*)")


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """A failure of the doctor's catalogue that was recognised."""

    code: str
    title: str
    """what one sees"""
    remedy: str
    """what helps most"""
    evidence: str
    """the line that shows it, after the name of its log"""

    def __str__(self) -> str:
        return f"{self.code}: {self.title}. {self.remedy}"

    @property
    def line(self) -> str:
        """The failure as a line of a log, which the doctor reads again."""
        return LINE.format(code=self.code, evidence=self.evidence)


def without_line(output: str) -> str:
    """Return a driver's output without lines that name a known failure."""
    return "\n".join(line for line in output.split("\n") if not LOGGED.search(line))
