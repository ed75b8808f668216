"""The failure that most probably ended an attempt, short enough for a status. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from rljob_api.known_failure import LOGGED, KnownFailure
from rljob_doctor.catalogue import catalogue
from rljob_doctor.diagnosis import diagnose
from rljob_doctor.entry import Level
from rljob_doctor.occurrences import UNKNOWN, Scanned

LONGEST_EVIDENCE: Final = 300
"""[characters]"""
ENDED: Final = "ProgramFailed"
"""the entry of processes of which only the end is known"""
KILL: Final = re.compile(r"\bSIGKILL\b|\bKilled\b|(?i:code|status)\W{1,5}(?:137|(?<=\W)-9)\b")
"""a line that says that something got SIGKILL, and not from whom"""
SENDERS: Final = (
    "It may be the kernel for memory (`OOMKilled` in the pod, `oom_kill` in its memory.events, `dmesg`), the kubelet"
    " after a grace period, Ray, or a person"
)


def known_failure(logs: Sequence[Scanned]) -> KnownFailure | None:
    """Return the failure that ended the attempt whose logs these are; None: none is known.

    A failure that the attempt survived, and one that only makes a run slow, end no attempt. What is only likely is not
    known, since a wrong cause costs its reader more than none: an exception is then one of Python's, a line none.
    """
    found = diagnose(logs).findings
    first = next((each for each in found if each.failure.level is not Level.HINT and not each.is_earlier), None)
    if first is None or (first.is_likely and UNKNOWN not in first.failure.over):
        return None
    seen = first.evidence[0]
    return _of(UNKNOWN if first.is_likely else first.failure.code, f"{seen.log}: {seen.text}")


def logged(output: str) -> KnownFailure | None:
    """Return the failure that a driver has logged at the end of its output; None: none, or one of a newer catalogue."""
    lines = LOGGED.findall(output)
    return _of(*lines[-1]) if lines and lines[-1][0] in catalogue() else None


def is_general(failure: KnownFailure) -> bool:
    """Return whether a failure says less than the error itself: that a Python program failed."""
    entry = catalogue().get(failure.code)
    return entry is not None and entry.general


def _of(code: str, evidence: str) -> KnownFailure:
    failure = catalogue()[code]
    seen = " ".join(evidence.split())[:LONGEST_EVIDENCE].strip()
    if code == ENDED and KILL.search(evidence):
        return KnownFailure(code, "killed by SIGKILL, and nothing says who sent it", SENDERS, seen)
    return KnownFailure(code, failure.title, failure.remedy[0], seen)
