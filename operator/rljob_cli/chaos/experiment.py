"""Faults in a job, one after the other: waits, hits, waits for the recovery, and looks at everything all the time.

Knows no clock and no cluster: a `World` has them.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol

from rljob_api.status import Phase
from rljob_cli.chaos import account
from rljob_cli.chaos.account import Injected, Outcome
from rljob_cli.chaos.invariants import Broken, Trail, held, unnamed, unrecovered
from rljob_cli.chaos.schedule import Planned
from rljob_cli.chaos.seen import Seen, said

RELEASE_S = 60.0
"""until the pods of a job that has ended are gone, beside the grace period that they have [s]"""


@dataclass(frozen=True, slots=True)
class Hit:
    """A fault that was made."""

    at_s: float
    """by the clock of the looks [s]"""
    target: str
    """what was hit, in words"""


class World(Protocol):
    """A job in its cluster. Its methods raise what the command line reports when the job or the cluster is gone."""

    def look(self) -> Seen:
        """Wait a little, and return what is seen of the job then."""
        ...

    def hit(self, planned: Planned) -> Hit | None:
        """Make a fault; None: there is no such target now."""
        ...

    def journal(self, known: Container[int]) -> Sequence[bytes]:
        """Return the files of the journal, the oldest first; empty: it cannot be read now.

        Without full ones until a step in `known`, and what is before them: they were read.
        """
        ...

    def pods(self) -> Mapping[str, float]:
        """Return the grace period of each of the job's pods, by name [s]."""
        ...


@dataclass
class Experiment:
    """Faults by a schedule; `say` gets a line for each as soon as the job has recovered from it."""

    world: World
    say: Callable[[str], None]
    within_s: float
    """longest time for a recovery [s]"""
    trail: Trail = field(default_factory=Trail)
    broken: list[Broken] = field(default_factory=list)
    injected: list[Injected] = field(default_factory=list)
    journals: int = 0

    def run(self, schedule: Sequence[Planned], for_s: float) -> Outcome:
        """Make the faults within `for_s` of the first good look; ends when the job does, or an invariant is broken."""
        first = seen = self._start()
        for planned in schedule:
            seen = self._until(first.at_s + planned.at_s, seen)
            if self.broken or seen.job.has_ended or seen.at_s > first.at_s + for_s:
                break
            seen = self._fault(planned, seen, first.at_s)
        seen = self._end(self._until(first.at_s + for_s, seen))
        return Outcome(
            tuple(self.injected),
            tuple(self.broken),
            seen.at_s - first.at_s,
            first.job,
            seen.job,
            self.journals,
            self.trail.issued_before or 0,
        )

    def _start(self) -> Seen:
        """Return the first look at which the job trains, and has done a step."""
        first = seen = self._look()
        while not (seen.is_well and seen.stepped_at_s > -inf):
            if seen.job.has_ended or self.broken or seen.at_s - first.at_s > self.within_s:
                self.broken = self.broken or [unrecovered("nothing", seen.job, self.within_s)]
                break
            seen = self._look()
        self._read_journal()
        return seen

    def _fault(self, planned: Planned, before: Seen, zero_s: float) -> Seen:
        """Make a fault, and wait until the job has recovered from it."""
        hit = self.world.hit(planned)
        if hit is None:
            self.say(account.impossible(before.at_s - zero_s, planned.fault))
            return before
        made = Injected(hit.at_s - zero_s, planned.fault, hit.target, before.job.status.attempt)
        while True:
            seen = self._look()
            made = _with(made, before, hit, seen)
            if made.well_s is not None or self.broken or seen.job.has_ended or seen.at_s - hit.at_s > self.within_s:
                break
        self.injected.append(made)
        self.say(account.line(made))
        self._judge(made, seen)
        self._read_journal()
        return seen

    def _judge(self, made: Injected, seen: Seen) -> None:
        what = f"{made.fault} of {made.target}"
        if made.well_s is not None or self.broken or seen.job.status.phase is Phase.SUCCEEDED:
            return
        silent = unnamed(what, made.said) if made.next_step_s is not None and seen.is_well else []
        self.broken += silent or [unrecovered(what, seen.job, self.within_s)]

    def _until(self, at_s: float, seen: Seen) -> Seen:
        """Look until a time; ends earlier with the job, or when an invariant is broken."""
        while seen.at_s < at_s and not (self.broken or seen.job.has_ended):
            seen = self._look()
        return seen

    def _end(self, seen: Seen) -> Seen:
        """Look for the last time; a job that has ended gives its pods back."""
        last, grace_s = seen, 0.0
        while seen.job.has_ended and not self.broken and (pods := self.world.pods()):
            last, grace_s = self._look(), max(grace_s, *pods.values())
            if last.at_s - seen.at_s > grace_s + RELEASE_S:
                self.broken += held(last.job, tuple(pods), grace_s)
        if not self.broken:
            self._read_journal()
        return last

    def _look(self) -> Seen:
        seen = self.world.look()
        self.broken += self.trail.add_seen(seen)
        return seen

    def _read_journal(self) -> None:
        if files := self.world.journal(self.trail.full):
            self.journals += 1
            self.broken += self.trail.add_journal(files)


def _with(made: Injected, before: Seen, hit: Hit, seen: Seen) -> Injected:
    """Return a fault with what one more look shows of it."""
    after_s = seen.at_s - hit.at_s
    notes = tuple(dict.fromkeys((*made.said, *said(before.job, seen.job))))
    detected_s = after_s if made.detected_s is None and notes else made.detected_s
    stepped_s = seen.stepped_at_s - hit.at_s
    next_step_s, since_s = made.next_step_s, made.since_s
    if seen.job.status.attempt > made.attempt:  # what the attempt before did until its end does not count
        next_step_s, since_s = None, after_s
    next_step_s = stepped_s if next_step_s is None and stepped_s > since_s else next_step_s
    still_s = min(seen.at_s - seen.stepped_at_s, after_s)  # a step in work may end although nothing goes on
    is_over = detected_s is not None and next_step_s is not None and seen.is_well
    return replace(
        made,
        said=notes,
        attempt=seen.job.status.attempt,
        since_s=since_s,
        detected_s=detected_s,
        next_step_s=next_step_s,
        still_s=max(made.still_s, still_s),
        well_s=after_s if is_over else None,
    )
