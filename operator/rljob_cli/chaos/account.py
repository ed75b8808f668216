"""What the command prints: the plan, a line for each fault, and the verdict. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_cli.chaos.faults import FAULTS, Fault
from rljob_cli.chaos.invariants import Broken, Invariant
from rljob_cli.chaos.schedule import Planned
from rljob_cli.jobs.jobs import Job
from rljob_cli.terminal.formats import seconds

LONGEST = 60
"""of each thing that the status says of a fault [characters]"""
MOST = 4
"""such things in a line"""


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that was made, and what followed."""

    at_s: float
    """since the start [s]"""
    fault: Fault
    target: str
    attempt: int = 0
    """the newest that was seen"""
    since_s: float = 0.0
    """when that attempt was first seen; 0: it is the one that was hit [s]"""
    detected_s: float | None = None
    """until the status showed it [s]; None: never"""
    next_step_s: float | None = None
    """until the end of the next step, of the next attempt if there is one [s]; None: none was done"""
    still_s: float = 0.0
    """longest time in which no step was seen to end [s]"""
    well_s: float | None = None
    """until it was detected, a step was done, and all engines were ready [s]; None: it did not come to that"""
    said: tuple[str, ...] = ()
    """what the status said of it"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all faults came to."""

    injected: tuple[Injected, ...]
    broken: tuple[Broken, ...]
    duration_s: float
    first: Job
    last: Job
    journals: int
    """how often the journal was read"""
    unread: int
    """prompts at its beginning that were not: it is too long"""


def plan(key: str, seed: int, schedule: Sequence[Planned], targets: Sequence[str]) -> str:
    """Return the schedule with the targets that it would have now, one line for each fault."""
    lines = [
        f"{_clock(planned.at_s)}  {planned.fault:<{WIDTH}}  {target}"
        for planned, target in zip(schedule, targets, strict=True)
    ]
    costly = sum(FAULTS[planned.fault].ends_attempt for planned in schedule)
    budget = [f"{costly} of them end an attempt: recovery.driverRestarts must allow that between two checkpoints"]
    return "\n".join([f"{key}: {len(schedule)} faults by seed {seed}", *lines, *(budget if costly else [])])


def no_plan(every_s: float, for_s: float) -> str:
    """Return why a plan is empty."""
    return f"no fault fits into --for {for_s:.0f}s with --every {every_s:.0f}s; nearest valid: --for {2 * every_s:.0f}s"


def start(key: str, seed: int, schedule: Sequence[Planned], for_s: float) -> str:
    """Return the first line."""
    return f"{key}: {len(schedule)} faults in {seconds(for_s)}, seed {seed}"


def line(made: Injected) -> str:
    """Return what is known of a fault."""
    parts = [
        _clock(made.at_s),
        f"{made.fault:<{WIDTH}}",
        made.target,
        _after("detected", made.detected_s),
        _after("next step", made.next_step_s),
        _after("without a step", made.still_s),
        _after("well", made.well_s),
    ]
    said = "; ".join(map(_cut, made.said[:MOST]))
    return f"{'  '.join(parts)}: {said or 'the status says nothing'}"


def impossible(at_s: float, fault: Fault) -> str:
    """Return the line of a fault without a target."""
    return f"{_clock(at_s)}  {fault:<{WIDTH}}  left out: nothing runs that it could hit"


def verdict(outcome: Outcome) -> str:
    """Return the last lines: what held, or what is broken."""
    attempts = outcome.last.status.attempt - outcome.first.status.attempt
    still_s = max((made.still_s for made in outcome.injected), default=None)
    unread = f", without its first {outcome.unread} prompts" if outcome.unread else ""
    facts = [
        f"{len(outcome.injected)} faults in {seconds(outcome.duration_s)}",
        f"steps {outcome.first.step} to {outcome.last.step}",
        f"{attempts} more {'attempt' if attempts == 1 else 'attempts'}",
        f"journal read {outcome.journals} times{unread}",
        *([f"at most {seconds(still_s)} without a step"] if still_s is not None else []),
    ]
    if outcome.broken:
        return "\n".join(["; ".join(facts), *(f"broken: {each}" for each in outcome.broken)])
    if not outcome.injected:
        return f"no fault was made, so nothing is known\n{'; '.join(facts)}"
    return f"held: {', '.join(Invariant)}\n{'; '.join(facts)}"


def interrupted(injected: Sequence[Injected]) -> str:
    """Return the last line after Ctrl-C."""
    return f"interrupted after {len(injected)} faults; no invariant was broken until then"


WIDTH = max(map(len, Fault))


def _clock(at_s: float) -> str:
    return f"{seconds(at_s):>6}"


def _after(what: str, after_s: float | None) -> str:
    return f"{what} {'never' if after_s is None else seconds(after_s)}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
