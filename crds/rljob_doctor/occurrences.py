"""What a scan finds in one log: the lines of each failure, and how the log ends."""

from dataclasses import dataclass, field
from typing import Final

UNKNOWN: Final = "PythonException"
"""the entry of exceptions that no other entry knows"""
LAST_WORDS: Final = 50
"""lines after an exception without a traceback up to which it counts as the end of its log"""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A line of a log that has a failure's signature."""

    log: str
    line: int
    """counted from 1"""
    text: str
    time: str = ""
    """newest time that the log names up to this line, as `2026-01-31 23:59:59`; "": none"""
    start: int = 0
    """offset of the line's first byte"""


@dataclass(slots=True)
class Scanned:
    """What was found in one log."""

    name: str
    found: dict[str, list[Occurrence]] = field(default_factory=dict)
    """occurrences by code, in their order"""
    settled: list[Occurrence] = field(default_factory=list)
    """lines with a signature of a failure that a later line proves to be overcome"""
    counts: dict[str, int] = field(default_factory=dict)
    """all occurrences, those that are not kept included"""
    lines: int = 0
    size: int = 0
    """bytes"""
    unread: int = 0
    """bytes that were not searched, because that would take too long; how the log ends is known nevertheless"""
    unjudged: int = 0
    """exceptions of which it was not looked up what they are, for the same reason"""
    succeeded_at: int = -1
    """offset of the last line that says that the run ended well, if it is near the end; -1: none"""
    progress_at: int = -1
    """offset of the last line that says that a step is done or a program ready, if it is near the end; -1: none"""
    well_at: int = -1
    """offset of the last line that says that something works, if it is near the end; -1: none"""
    last_exception: Occurrence | None = None
    """the last exception of Python, known or not"""
    last_frame: Occurrence | None = None
    """the last frame of a traceback whose exception the log does not have; None: it has all"""
    last_errors: dict[str, list[Occurrence]] = field(default_factory=dict)
    """lines at the end that look like errors and that no signature knows, by the code that a rule suggests"""
    last_likely: dict[str, list[Occurrence]] = field(default_factory=dict)
    """such lines without a rule, by the code whose texts they are most like"""
    inferred: dict[str, list[Occurrence]] = field(default_factory=dict)
    """exceptions that no signature knows, by the code that their class, words and frames suggest"""

    @property
    def last_words(self) -> Occurrence | None:
        """The last exception, if the log ends with it, or the last frame of a traceback that is cut off."""
        cut_off = self.last_frame if self.last_frame and self.last_frame.start > self.progress_at else None
        last = cut_off or self.last_exception
        return last if last and self.lines - last.line < LAST_WORDS else None
