"""One pass over all jobs: who may have pods, who waits, at which position and for what. Pure.

Jobs are looked at in their order. One that fits gets room, whole or not at all. One that does not fit

  * waits for those that leave already, if their room is enough: nobody else gets it meanwhile;
  * sends jobs of lower priorities away, if that is enough and its PriorityClass preempts;
  * else may be overtaken by those behind it. The first in the queue bears that for `patience_s`; then room is kept for
    it, and only what it could never use is given to others.

Where more nodes may come than are seen, one job at a time is given quota without nodes: its pods are what an
autoscaler acts on. That is done when all pods of the others have their nodes.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from rljob_operator.capacity.demand import Container, Pods, total
from rljob_operator.capacity.finding import Outcome
from rljob_operator.capacity.quantities import shown
from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.queueing.order import Line, rank
from rljob_operator.queueing.room import Room, Shortage, Spots
from rljob_operator.queueing.ticket import Holding, Rules, Ticket
from rljob_operator.turn import Standing, Turn

CREDIT_S = 900.0
"""how long a job may wait for nodes to come until the next one may do so, too [s]"""
MOST_TRIES = 4
"""jobs for which a pass looks for others to send away"""
MOST_SPARED = 16
"""of the jobs to be sent away, those for which a pass looks whether they may stay"""


def schedule(tickets: Iterable[Ticket], seen: Snapshot, rules: Rules, now: float) -> Mapping[str, Turn]:
    """Return the turn of each job."""
    return _Pass(tuple(tickets), seen, rules, now).turns()


class _Pass:
    """The state of one pass. `now` is what is free; `later` is what will be, when those that leave have left."""

    def __init__(self, tickets: Sequence[Ticket], seen: Snapshot, rules: Rules, now: float) -> None:
        self._rules, self._time = rules, now
        self._may_grow = seen.nodes is not None and seen.coming != ()
        self._turns: dict[str, Turn] = {}
        self._room = Room(seen)
        self._holders: dict[str, Ticket] = {}
        self._waiting: list[Ticket] = []
        self._has_credit = self._may_grow
        self._sort(tickets)
        self._later = self._room.copy()
        for ticket in self._holders.values():
            if ticket.holding is Holding.LEAVING:
                self._later.give_back(ticket.key)
        self._failed: dict[Hashable, Shortage] = {}
        self._hopeless: dict[Hashable, Shortage] = {}
        """the same for `later`, until somebody is sent away"""
        self._heads: set[str] = set()
        values = (rules.priority_of(each).value for each in self._holders.values() if each.holding is Holding.RESERVED)
        self._lowest = min(values, default=0)
        """of the priorities of those that hold room"""
        self._tries = MOST_TRIES
        self._position = 0

    def _sort(self, tickets: Sequence[Ticket]) -> None:
        """Let holders take what they have, in the order in which they got it."""
        holders = [each for each in tickets if each.holding is not Holding.NOTHING]
        for ticket in sorted(holders, key=lambda each: (each.since or 0.0, rank(each, self._rules))):
            self._holders[ticket.key] = ticket
            self._room.hold(ticket.key, ticket.namespace, ticket.pods, ticket.bound)
            if not _is_bound(ticket) and self._time - (ticket.since or 0.0) < CREDIT_S:
                self._has_credit = False  # pods without nodes of two jobs could take a part of what each needs
            if ticket.holding is Holding.RESERVED:
                self._turns[ticket.key] = reserved(ticket, ticket.held_engines)
                if ticket.more and ticket.wants:
                    self._waiting.append(ticket)
            elif ticket.holding is Holding.LEAVING and ticket.preempted_for is not None:
                self._turns[ticket.key] = preempted(ticket.preempted_for)
            elif ticket.holding is Holding.LEAVING and ticket.wants:
                self._turns[ticket.key] = Turn(Standing.QUEUED, "its pods of an earlier attempt still exist")
        self._waiting += [each for each in tickets if each.holding is Holding.NOTHING and each.wants]

    def turns(self) -> Mapping[str, Turn]:
        held: dict[str, int] = {}
        for ticket in self._holders.values():
            held[ticket.namespace] = held.get(ticket.namespace, 0) + ticket.gpus
        line = Line(self._waiting, self._rules, held)
        for ticket in line:
            if ticket.key in self._holders and self._holders[ticket.key].holding is not Holding.RESERVED:
                continue  # it was to grow, and has been sent away
            wanted = _wanted(ticket)
            found = self._find(ticket, wanted)
            if isinstance(found, Shortage):
                self._refuse(ticket, wanted, found)
            else:
                self._give(ticket, wanted, found)
                line.given(ticket)
        return self._turns

    def _find(self, ticket: Ticket, wanted: tuple[Pods, ...]) -> Spots | Shortage:
        """Return room for a job. What has failed once fails again: in a pass room only gets less."""
        shape = _shape(ticket.namespace, wanted)
        if shape in self._failed:
            return self._failed[shape]
        found = self._room.find(ticket.namespace, wanted)
        if isinstance(found, Shortage):
            self._failed[shape] = found
        return found

    def _give(self, ticket: Ticket, wanted: tuple[Pods, ...], spots: Spots) -> None:
        for room in (self._room, self._later):
            room.take(ticket.key, ticket.namespace, wanted, spots)
        self._turns[ticket.key] = reserved(ticket, ticket.engines)
        self._has_credit = False  # its pods have no nodes yet

    def _refuse(self, ticket: Ticket, wanted: tuple[Pods, ...], short: Shortage) -> None:
        text = _text(wanted, short)
        if short.outcome is Outcome.NEVER:
            self._turn(ticket, Turn(Standing.NEVER, text))
            return
        is_head = self._is_head(ticket, short)
        if is_head and not short.of_quota and self._has_credit:
            for room in (self._room, self._later):
                room.hold(ticket.key, ticket.namespace, wanted, {})
            self._turns[ticket.key] = reserved(ticket, ticket.engines)
            self._has_credit = False
            return
        self._position += 1
        since = ticket.first_since if ticket.first_since is not None or not is_head else self._time
        waits = Turn(Standing.QUEUED, text, self._position, since)
        leaving = self._frees(ticket, wanted)
        if leaving:
            waits = replace(waits, text=f"{text}; waits until {_listed(leaving)} have left")
        elif is_head and since is not None and self._time - since >= self._rules.patience_s:
            for room in (self._room, self._later):
                room.keep(ticket.key, ticket.namespace, wanted, with_nodes=not short.of_quota)
        self._turn(ticket, waits)

    def _is_head(self, ticket: Ticket, short: Shortage) -> bool:
        """Return whether a job is the first that lacks this: quota of its namespace, or nodes."""
        lacks = ticket.namespace if short.of_quota else "/nodes"
        if lacks in self._heads:
            return False
        self._heads.add(lacks)
        return True

    def _turn(self, ticket: Ticket, turn: Turn) -> None:
        """Note a turn; a job that was scaled up keeps what it holds, and waits for the rest."""
        if ticket.holding is Holding.RESERVED:
            text = f"{self._turns[ticket.key].text}; {ticket.engines} engines wait: {turn.text}"
            turn = replace(turn, standing=Standing.RESERVED, text=text, position=None, engines=ticket.held_engines)
        self._turns[ticket.key] = turn

    def _frees(self, ticket: Ticket, wanted: tuple[Pods, ...]) -> tuple[str, ...]:
        """Return whose leaving makes room for a job, after sending away whom it may; none: it is not enough.

        That room is taken for it, so nobody else gets it.
        """
        shape = _shape(ticket.namespace, wanted)
        found: Spots | Shortage | None = self._hopeless.get(shape)
        if found is None:  # where nobody leaves, later is as now
            found = self._later.find(ticket.namespace, wanted) if self._leaving() else self._failed[shape]
        if isinstance(found, Shortage):
            self._hopeless[shape] = found
            victims = self._victims(ticket, wanted)
            if not victims:
                return ()
            self._hopeless.clear()
            for victim in victims:
                self._turns[victim.key] = preempted(ticket.key)
                self._later.give_back(victim.key)
                self._holders[victim.key] = replace(victim, holding=Holding.LEAVING, preempted_for=ticket.key)
            found = self._later.find(ticket.namespace, wanted)
            assert not isinstance(found, Shortage)
        for room in (self._room, self._later):
            room.take(ticket.key, ticket.namespace, wanted, found)
        return self._leaving()

    def _leaving(self) -> tuple[str, ...]:
        return tuple(key for key, each in self._holders.items() if each.holding is Holding.LEAVING)

    def _victims(self, ticket: Ticket, wanted: tuple[Pods, ...]) -> tuple[Ticket, ...]:
        """Return the jobs to send away, no more than needed: lower priorities first, then the newest reservations."""
        mine = self._rules.priority_of(ticket)
        if not mine.preempts or mine.value <= self._lowest or self._tries == 0:
            return ()
        below = [
            each
            for each in self._holders.values()
            if each.holding is Holding.RESERVED and self._rules.priority_of(each).value < mine.value
        ]
        if not below:
            return ()
        self._tries -= 1
        below.sort(key=lambda each: (self._rules.priority_of(each).value, -(each.since or 0.0), each.key))
        if not self._fits_without(below, ticket, wanted):
            return ()
        # More victims are never worse, so a binary search finds how many are needed.
        count = bisect_left(
            range(1, len(below) + 1), True, key=lambda number: self._fits_without(below[:number], ticket, wanted)
        )
        chosen = below[: count + 1]
        for each in reversed(chosen[:-1][:MOST_SPARED]):
            others = [other for other in chosen if other is not each]
            if self._fits_without(others, ticket, wanted):
                chosen = others
        return tuple(chosen)

    def _fits_without(self, leaving: Sequence[Ticket], ticket: Ticket, wanted: tuple[Pods, ...]) -> bool:
        trial = self._later.copy()
        for each in leaving:
            trial.give_back(each.key)
        return not isinstance(trial.find(ticket.namespace, wanted), Shortage)


def _is_bound(ticket: Ticket) -> bool:
    """Return whether all pods of a job are on nodes."""
    return all(len(ticket.bound.get(each.group, ())) >= each.count for each in ticket.pods)


def _wanted(ticket: Ticket) -> tuple[Pods, ...]:
    return ticket.more if ticket.holding is Holding.RESERVED else ticket.pods


def reserved(ticket: Ticket, engines: int | None) -> Turn:
    """Return the turn of a job that holds room, for so many engines."""
    return Turn(
        Standing.RESERVED,
        f"it holds room for {sum(each.count for each in ticket.pods)} pods with {ticket.gpus} slots",
        engines=engines,
    )


def preempted(by: str) -> Turn:
    """Return the turn of a job that is sent away for another."""
    return Turn(Standing.PREEMPTED, f"{by} has a higher priority and needs its room", preempted_for=by)


def _text(wanted: tuple[Pods, ...], short: Shortage) -> str:
    """Return what is short, with what is needed of it."""
    needed = total(wanted)
    names = dict.fromkeys(each.resource for each in short.findings if each.resource is not None)
    needs = ", ".join(shown(name, needed[name]) for name in names if name in needed)
    return "; ".join([*([f"needs {needs}"] if needs else []), *dict.fromkeys(each.text for each in short.findings)])


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def _shape(namespace: str, pods: Sequence[Pods]) -> Hashable:
    """Return the same value for jobs whose pods are alike."""
    return namespace, tuple(
        (
            each.count,
            tuple(
                (tuple(sorted(c.requests.items())), tuple(sorted(c.limits.items())), c.is_init) for c in each.containers
            ),
            tuple(sorted(each.node_selector.items())),
            repr(each.tolerations),
            each.priority_class,
        )
        for each in pods
    )


def _size(container: Container) -> Hashable:
    return tuple(sorted(container.requests.items())), tuple(sorted(container.limits.items())), container.is_init
