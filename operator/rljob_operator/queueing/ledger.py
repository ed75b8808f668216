"""The queue's memory between two passes: a ticket for each job, and the decision about it.

A reconcile hands in the ticket of its job, and acts on the decision. What a pass has given or taken counts at once,
also while the status that shows it is being written; after a restart the statuses say the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rljob_operator.capacity.demand import Pods
from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.queueing.lease import LEASE_S
from rljob_operator.queueing.schedule import preempted, reserved, schedule
from rljob_operator.queueing.ticket import Holding, Rules, Ticket
from rljob_operator.world.queue_decision import QueueDecision, Standing

UNDECIDED = QueueDecision(Standing.UNDECIDED, "the queue has not looked at it yet")
IDLE = QueueDecision(Standing.QUEUED, "it asks for no pods")


@dataclass(frozen=True, slots=True)
class Changes:
    """Jobs whose decisions a pass has changed."""

    decided: tuple[str, ...] = ()
    """something has to be done about them"""
    moved: tuple[str, ...] = ()
    """they wait as before, at another position or for other numbers"""


class Ledger:
    """Tickets and decisions by job. Not thread-safe; no I/O."""

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}
        self._decisions: dict[str, QueueDecision] = {}
        self._granted: dict[str, QueueDecision] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._tickets

    @property
    def tickets(self) -> Mapping[str, Ticket]:
        return self._tickets

    def granted(self, key: str) -> QueueDecision | None:
        """Return what a pass has given or taken that the job's status may not show yet."""
        return self._granted.get(key)

    def put(self, ticket: Ticket, is_shown: bool) -> bool:
        """Keep a ticket; return whether it may change decisions. `is_shown`: its status shows what was decided last."""
        granted = self._granted.get(ticket.key)
        if is_shown or (granted is not None and granted.is_reserved and ticket.holding is not Holding.RESERVED):
            self._granted.pop(ticket.key, None)
        before, decision = self._tickets.get(ticket.key), self._decisions.get(ticket.key)
        if ticket.first_since is None and decision is not None and ticket.holding is Holding.NOTHING:
            ticket = replace(ticket, first_since=decision.first_since)
        if ticket.holding is Holding.RESERVED and ticket.since is None and before is not None:
            ticket = replace(ticket, since=before.since)
        if ticket.holding is Holding.LEAVING and before is not None and before.holding is not Holding.NOTHING:
            ticket = replace(ticket, pods=before.pods, gpus=before.gpus)  # what leaves is what there was
        self._tickets[ticket.key] = ticket
        return before is None or _matters(before) != _matters(ticket)

    def leave(self, key: str, has_pods: bool) -> bool:
        """A job is gone, or refused; its pods count until they are gone. Return whether that may change decisions."""
        ticket = self._tickets.get(key)
        if ticket is None:
            return False
        self._decisions.pop(key, None)
        self._granted.pop(key, None)
        if has_pods:
            leaving = replace(ticket, holding=Holding.LEAVING, wants=False, more=(), preempted_for=None)
            self._tickets[key] = leaving
            return _matters(leaving) != _matters(ticket)
        del self._tickets[key]
        return True

    def decision(self, key: str) -> QueueDecision:
        """Return the decision about a job that has a ticket."""
        ticket, decision = self._tickets[key], self._decisions.get(key)
        if ticket.holding is Holding.RESERVED:
            known = decision if decision is not None and decision.is_reserved else reserved(ticket, None)
            return replace(known, engines=ticket.held_engines)
        if ticket.holding is Holding.LEAVING and ticket.preempted_for is not None:
            return preempted(ticket.preempted_for)
        granted = self._granted.get(key)
        if ticket.holding is Holding.LEAVING and granted is not None and not granted.is_reserved:
            return granted
        if not ticket.wants:
            return IDLE
        return UNDECIDED if decision is None or decision.is_reserved else decision

    @property
    def waits(self) -> bool:
        """Whether a pass could give room to any job."""
        return any(each.waits for each in self._tickets.values())

    def decide(self, seen: Snapshot, rules: Rules, now: float) -> "Changes":
        """Make a pass; return the jobs whose decisions have changed."""
        asked = self.asked(now)
        return self.adopt(asked, schedule(asked.values(), seen, rules, now), now) or Changes()

    def asked(self, now: float) -> Mapping[str, Ticket]:
        """Return the tickets for a pass that begins now.

        What was given to a job counts no longer when its status has not shown it for long: it cannot be written.
        """
        for key, decision in list(self._granted.items()):
            ticket = self._tickets[key]
            if decision.is_reserved and ticket.holding is Holding.RESERVED and now - (ticket.since or now) >= LEASE_S:
                del self._granted[key]
                self._tickets[key] = replace(ticket, holding=Holding.NOTHING, since=None, wants=False)
        return dict(self._tickets)

    def adopt(self, asked: Mapping[str, Ticket], found: Mapping[str, QueueDecision], now: float) -> "Changes | None":
        """Take in the decisions that a pass has found for these tickets; return the jobs whose decisions have changed.

        Nothing is decided about a job that has changed since. None: nor about any, because a job has come to hold room.
        """
        if any(_holds(ticket) and not _holds(asked.get(key)) for key, ticket in self._tickets.items()):
            return None
        found = {key: decision for key, decision in found.items() if self._is_still(key, asked[key])}
        changed = {key: before for key, decision in found.items() if (before := self.decision(key)) != decision}
        moved = {key: None for key, before in changed.items() if found[key].differs_in_place_only(before)}
        for key, decision in found.items():
            self._note(self._tickets[key], decision, now)
        self._decisions = {**{key: decision for key, decision in self._decisions.items() if key not in asked}, **found}
        return Changes(tuple(key for key in changed if key not in moved), tuple(moved))

    def _is_still(self, key: str, asked: Ticket) -> bool:
        ticket = self._tickets.get(key)
        return ticket is asked or (ticket is not None and _matters(ticket) == _matters(asked))

    def _note(self, ticket: Ticket, decision: QueueDecision, now: float) -> None:
        """Let what was decided count from now on."""
        if decision.is_reserved and ticket.holding is Holding.NOTHING:
            self._granted[ticket.key] = decision
            given = replace(ticket, holding=Holding.RESERVED, since=now, first_since=decision.first_since)
            self._tickets[ticket.key] = given
        elif decision.is_reserved and ticket.more and decision.engines == ticket.engines:
            self._granted[ticket.key] = decision
            held = _together(ticket)
            self._tickets[ticket.key] = replace(ticket, pods=held, more=(), held_engines=ticket.engines)
        elif decision.standing is Standing.PREEMPTED and ticket.holding is Holding.RESERVED:
            self._granted[ticket.key] = decision
            leaving = replace(ticket, holding=Holding.LEAVING, preempted_for=decision.preempted_for, more=())
            self._tickets[ticket.key] = leaving
        elif decision.standing is Standing.REVOKED and ticket.holding is Holding.RESERVED:
            self._granted[ticket.key] = decision
            again = replace(ticket, holding=Holding.LEAVING, more=())
            self._tickets[ticket.key] = replace(again, revoked=decision.revoked, retry_at=decision.retry_at or 0.0)


def _holds(ticket: Ticket | None) -> bool:
    return ticket is not None and ticket.holding is not Holding.NOTHING


def _together(ticket: Ticket) -> tuple[Pods, ...]:
    more = {each.group: each.count for each in ticket.more}
    known = {each.group for each in ticket.pods}
    grown = tuple(replace(each, count=each.count + more.get(each.group, 0)) for each in ticket.pods)
    return (*grown, *(each for each in ticket.more if each.group not in known))


def _matters(ticket: Ticket) -> Ticket:
    """Return the ticket without what changes no decision."""
    return replace(ticket, first_since=None, since=None, due=None)
