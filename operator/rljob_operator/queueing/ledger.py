"""The queue's memory between two passes: a ticket for each job, and its turn.

A reconcile hands in the ticket of its job, and acts on the turn. What a pass has given or taken counts at once, also
while the status that shows it is being written; after a restart the statuses say the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rljob_operator.capacity.demand import Pods
from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.queueing.lease import LEASE_S
from rljob_operator.queueing.schedule import preempted, reserved, schedule
from rljob_operator.queueing.ticket import Holding, Rules, Ticket
from rljob_operator.world.queue_decision import Standing, Turn

UNDECIDED = Turn(Standing.UNDECIDED, "the queue has not looked at it yet")
IDLE = Turn(Standing.QUEUED, "it asks for no pods")


@dataclass(frozen=True, slots=True)
class Changes:
    """Jobs whose turns a pass has changed."""

    decided: tuple[str, ...] = ()
    """something has to be done about them"""
    moved: tuple[str, ...] = ()
    """they wait as before, at another position or for other numbers"""


class Ledger:
    """Tickets and turns by job. Not thread-safe; no I/O."""

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}
        self._turns: dict[str, Turn] = {}
        self._granted: dict[str, Turn] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._tickets

    @property
    def tickets(self) -> Mapping[str, Ticket]:
        return self._tickets

    def granted(self, key: str) -> Turn | None:
        """Return what a pass has given or taken that the job's status may not show yet."""
        return self._granted.get(key)

    def put(self, ticket: Ticket, is_shown: bool) -> bool:
        """Keep a ticket; return whether it may change turns. `is_shown`: its status shows what was decided last."""
        granted = self._granted.get(ticket.key)
        if is_shown or (granted is not None and granted.is_reserved and ticket.holding is not Holding.RESERVED):
            self._granted.pop(ticket.key, None)
        before, turn = self._tickets.get(ticket.key), self._turns.get(ticket.key)
        if ticket.first_since is None and turn is not None and ticket.holding is Holding.NOTHING:
            ticket = replace(ticket, first_since=turn.first_since)
        if ticket.holding is Holding.RESERVED and ticket.since is None and before is not None:
            ticket = replace(ticket, since=before.since)
        if ticket.holding is Holding.LEAVING and before is not None and before.holding is not Holding.NOTHING:
            ticket = replace(ticket, pods=before.pods, gpus=before.gpus)  # what leaves is what there was
        self._tickets[ticket.key] = ticket
        return before is None or _matters(before) != _matters(ticket)

    def leave(self, key: str, has_pods: bool) -> bool:
        """A job is gone, or refused; its pods count until they are gone. Return whether that may change turns."""
        ticket = self._tickets.get(key)
        if ticket is None:
            return False
        self._turns.pop(key, None)
        self._granted.pop(key, None)
        if has_pods:
            leaving = replace(ticket, holding=Holding.LEAVING, wants=False, more=(), preempted_for=None)
            self._tickets[key] = leaving
            return _matters(leaving) != _matters(ticket)
        del self._tickets[key]
        return True

    def turn(self, key: str) -> Turn:
        """Return the turn of a job that has a ticket."""
        ticket, turn = self._tickets[key], self._turns.get(key)
        if ticket.holding is Holding.RESERVED:
            known = turn if turn is not None and turn.is_reserved else reserved(ticket, None)
            return replace(known, engines=ticket.held_engines)
        if ticket.holding is Holding.LEAVING and ticket.preempted_for is not None:
            return preempted(ticket.preempted_for)
        granted = self._granted.get(key)
        if ticket.holding is Holding.LEAVING and granted is not None and not granted.is_reserved:
            return granted
        if not ticket.wants:
            return IDLE
        return UNDECIDED if turn is None or turn.is_reserved else turn

    @property
    def waits(self) -> bool:
        """Whether a pass could give anything to anybody."""
        return any(each.waits for each in self._tickets.values())

    def decide(self, seen: Snapshot, rules: Rules, now: float) -> "Changes":
        """Make a pass; return the jobs whose turns have changed."""
        asked = self.asked(now)
        return self.adopt(asked, schedule(asked.values(), seen, rules, now), now) or Changes()

    def asked(self, now: float) -> Mapping[str, Ticket]:
        """Return the tickets for a pass that begins now.

        What was given to a job counts no longer when its status has not shown it for long: it cannot be written.
        """
        for key, turn in list(self._granted.items()):
            ticket = self._tickets[key]
            if turn.is_reserved and ticket.holding is Holding.RESERVED and now - (ticket.since or now) >= LEASE_S:
                del self._granted[key]
                self._tickets[key] = replace(ticket, holding=Holding.NOTHING, since=None, wants=False)
        return dict(self._tickets)

    def adopt(self, asked: Mapping[str, Ticket], found: Mapping[str, Turn], now: float) -> "Changes | None":
        """Take in the turns that a pass has found for these tickets; return the jobs whose turns have changed.

        Nothing is decided about a job that has changed since. None: nor about any, because a job has come to hold room.
        """
        if any(_holds(ticket) and not _holds(asked.get(key)) for key, ticket in self._tickets.items()):
            return None
        found = {key: turn for key, turn in found.items() if self._is_still(key, asked[key])}
        changed = {key: before for key, turn in found.items() if (before := self.turn(key)) != turn}
        moved = {key: None for key, before in changed.items() if found[key].differs_in_place_only(before)}
        for key, turn in found.items():
            self._note(self._tickets[key], turn, now)
        self._turns = {**{key: turn for key, turn in self._turns.items() if key not in asked}, **found}
        return Changes(tuple(key for key in changed if key not in moved), tuple(moved))

    def _is_still(self, key: str, asked: Ticket) -> bool:
        ticket = self._tickets.get(key)
        return ticket is asked or (ticket is not None and _matters(ticket) == _matters(asked))

    def _note(self, ticket: Ticket, turn: Turn, now: float) -> None:
        """Let what was decided count from now on."""
        if turn.is_reserved and ticket.holding is Holding.NOTHING:
            self._granted[ticket.key] = turn
            given = replace(ticket, holding=Holding.RESERVED, since=now, first_since=turn.first_since)
            self._tickets[ticket.key] = given
        elif turn.is_reserved and ticket.more and turn.engines == ticket.engines:
            self._granted[ticket.key] = turn
            held = _together(ticket)
            self._tickets[ticket.key] = replace(ticket, pods=held, more=(), held_engines=ticket.engines)
        elif turn.standing is Standing.PREEMPTED and ticket.holding is Holding.RESERVED:
            self._granted[ticket.key] = turn
            leaving = replace(ticket, holding=Holding.LEAVING, preempted_for=turn.preempted_for, more=())
            self._tickets[ticket.key] = leaving
        elif turn.standing is Standing.REVOKED and ticket.holding is Holding.RESERVED:
            self._granted[ticket.key] = turn
            again = replace(ticket, holding=Holding.LEAVING, more=(), first_since=turn.first_since)
            self._tickets[ticket.key] = replace(again, revoked=turn.revoked, retry_at=turn.retry_at or 0.0)


def _holds(ticket: Ticket | None) -> bool:
    return ticket is not None and ticket.holding is not Holding.NOTHING


def _together(ticket: Ticket) -> tuple[Pods, ...]:
    more = {each.group: each.count for each in ticket.more}
    known = {each.group for each in ticket.pods}
    grown = tuple(replace(each, count=each.count + more.get(each.group, 0)) for each in ticket.pods)
    return (*grown, *(each for each in ticket.more if each.group not in known))


def _matters(ticket: Ticket) -> Ticket:
    """Return the ticket without what changes no turn."""
    return replace(ticket, first_since=None, since=None, due=None)
