"""One pass over all jobs: who may have pods, who waits, at which position and for what. Pure.

Jobs are looked at in their order. One that fits gets room, whole or not at all. One that does not fit

  * waits for those that leave already, if their room is enough: no other job gets it meanwhile;
  * preempts jobs of lower priorities, if that is enough and its PriorityClass allows it;
  * else may be overtaken by those behind it. The first that waits for a quota, or for a set of nodes, can
    be overtaken for `patience_s`; then room is reserved for it, and others get only what it could never use.

Where more nodes may come than are seen, one job of each set of nodes is lent a reservation without nodes: its pods are
what an autoscaler acts on. While pods have no nodes, no other job gets nodes that they could take, because schedulers
know no gangs. A reservation whose pods do not get nodes in time is given back (`lease.py`).
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from rljob_operator.capacity.demand import Pods, total
from rljob_operator.capacity.obstacle import Outcome
from rljob_operator.capacity.quantities import shown
from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.queueing.free_capacity import FreeCapacity, Pool, Shortage, Spots, shape_of
from rljob_operator.queueing.lease import CREDIT_S, credit_s, held_s, is_bound, retry_s
from rljob_operator.queueing.ticket import Holding, Rules, Ticket
from rljob_operator.queueing.victims import fewest
from rljob_operator.world.queue_decision import QueueDecision, Standing

MOST_TRIES = 256
"""jobs for which a pass looks for others to preempt"""


def schedule(tickets: Iterable[Ticket], seen: Snapshot, rules: Rules, now: float) -> Mapping[str, QueueDecision]:
    """Return the decision about each job."""
    return _Pass(tuple(tickets), seen, rules, now).decisions()


@dataclass(frozen=True, slots=True)
class _Waits:
    """A job that lacks nodes."""

    ticket: Ticket
    wanted: tuple[Pods, ...]
    pool: Pool
    place: int
    """in the line"""
    is_head: bool
    """whether it is the first that waits for these nodes, and they would do if they were empty"""
    is_kept: bool = False
    """whether room is kept for it"""


class _Pass:
    """The state of one pass. `now` is what is free; `later` is what will be, when those that leave have left."""

    def __init__(self, tickets: Sequence[Ticket], seen: Snapshot, rules: Rules, now: float) -> None:
        self._rules, self._time = rules, now
        self._decisions: dict[str, QueueDecision] = {}
        self._room = FreeCapacity(seen)
        self._holders: dict[str, Ticket] = {}
        self._leaving: list[str] = []
        self._waiting: list[Ticket] = []
        self._pending: list[tuple[Ticket, tuple[Pods, ...]]] = []
        """jobs some of whose pods are on no node yet, with those for which there is none"""
        self._sort(tickets)
        self._revoke()
        self._later = self._room.copy()
        for key in self._leaving:
            self._later.give_back(key)
        for ticket, without in self._pending:
            if ticket.key in self._holders and self._holders[ticket.key].holding is Holding.RESERVED:
                for room in (self._room, self._later):
                    room.close(self._room.suitable(without))
        self._heads: set[Hashable] = set()
        self._short_of_nodes: list[_Waits] = []
        self._unknown: set[str] = set()
        """jobs for which the search for nodes has given up"""
        self._line: list[str] = []
        self._in_vain: set[Hashable] = set()
        """needs for which no preemption makes room, until a job is preempted"""
        values = (rules.priority_of(each).value for each in self._holders.values() if each.holding is Holding.RESERVED)
        self._lowest = min(values, default=0)
        """of the priorities of those that hold room"""
        self._tries = MOST_TRIES

    def _sort(self, tickets: Sequence[Ticket]) -> None:
        """Let holders take what they have: first where their pods are, then what those lack that have no node yet."""
        holders = [each for each in tickets if each.holding is not Holding.NOTHING]
        holders.sort(key=lambda each: (each.since or 0.0, rank(each, self._rules)))
        rests = [self._room.hold(each.key, each.namespace, each.pods, each.bound) for each in holders]
        for ticket, rest in zip(holders, rests, strict=True):
            self._holders[ticket.key] = ticket
            without = self._room.place(ticket.key, rest)
            if ticket.holding is Holding.LEAVING:
                self._leaving.append(ticket.key)
            if ticket.holding is Holding.RESERVED:
                self._decisions[ticket.key] = reserved(ticket, ticket.held_engines)
                if not ticket.has_started and not is_bound(ticket):
                    self._pending.append((ticket, without))
                if ticket.more and ticket.wants:
                    self._waiting.append(ticket)
            elif ticket.holding is Holding.LEAVING and ticket.preempted_for is not None:
                self._decisions[ticket.key] = preempted(ticket.preempted_for)
            elif ticket.holding is Holding.LEAVING and ticket.wants:
                self._decisions[ticket.key] = _queued(ticket, "its pods of an earlier attempt still exist")
        self._waiting += [each for each in tickets if each.holding is Holding.NOTHING and each.wants]

    def _revoke(self) -> None:
        """Take back reservations whose pods have had no nodes for too long.

        Of those that stand in each other's way the last one goes first: the others may then get theirs.
        """
        taken_back: list[str] = []
        failures = [(self._pool(each, each.pods), each.revoked) for each in self._waiting if each.revoked]
        for ticket, without in sorted(self._pending, key=lambda each: rank(each[0], self._rules), reverse=True):
            if not without:
                continue
            held = held_s(ticket, self._time)
            pool = self._pool(ticket, without)
            limit_s = credit_s(ticket.revoked + sum(count for other, count in failures if not pool.isdisjoint(other)))
            leave = taken_back if held >= 2 * limit_s else self._leaving
            if held >= limit_s and not self._frees_soon(pool, leave):
                number = sum(each.count for each in without)
                self._take_back(ticket, f"no nodes have come for {number} of its pods within {limit_s / 60:.0f} min")
                taken_back.append(ticket.key)

    def _frees_soon(self, pool: Pool, leaving: Sequence[str]) -> bool:
        """Return whether one of these jobs leaves some of these nodes."""
        return any(not pool.isdisjoint(self._room.nodes_of(key)) for key in leaving)

    def _take_back(self, ticket: Ticket, why: str) -> None:
        self._decisions[ticket.key] = revoked(ticket, why, self._time)
        self._leaves(replace(ticket, holding=Holding.LEAVING))

    def _leaves(self, ticket: Ticket) -> None:
        self._holders[ticket.key] = ticket
        self._leaving.append(ticket.key)

    def _pool(self, ticket: Ticket, pods: Sequence[Pods]) -> Pool:
        return self._room.pool(ticket.namespace, pods)

    def decisions(self) -> Mapping[str, QueueDecision]:
        held: dict[str, int] = {}
        for ticket in self._holders.values():
            held[ticket.namespace] = held.get(ticket.namespace, 0) + ticket.gpus
        line = Line(self._waiting, self._rules, held)
        for ticket in line:
            if ticket.key in self._holders and self._holders[ticket.key].holding is not Holding.RESERVED:
                continue  # it was to grow, and has been preempted
            wanted = _wanted(ticket)
            found = self._room.find(ticket.namespace, wanted)
            if isinstance(found, Shortage):
                self._refuse(ticket, wanted, found)
            else:
                self._give(ticket, wanted, found)
                line.given(ticket)
        self._lend()
        self._number()
        return self._decisions

    def _give(self, ticket: Ticket, wanted: tuple[Pods, ...], spots: Spots) -> None:
        for room in (self._room, self._later):
            room.take(ticket.key, ticket.namespace, wanted, spots)
        self._decisions[ticket.key] = reserved(ticket, ticket.engines)
        self._pending.append((ticket, ()))  # its pods have no nodes yet

    def _refuse(self, ticket: Ticket, wanted: tuple[Pods, ...], short: Shortage) -> None:
        text = _text(wanted, short)
        if short.outcome is Outcome.NEVER:
            self._note(ticket, QueueDecision(Standing.NEVER, text))
            return
        pool = frozenset() if short.of_quota else self._pool(ticket, wanted)
        is_head = self._is_head(ticket, wanted, short, pool)
        waits = _queued(ticket, text)
        if is_head and waits.first_since is None:
            waits = replace(waits, first_since=self._time)
        leaving = self._frees(ticket, wanted, short)
        if leaving:
            waits = replace(waits, text=f"{text}; waits until {_listed(leaving)} have left")
        else:
            is_kept = is_head and self._time - (waits.first_since or self._time) >= self._rules.patience_s
            if is_kept:
                for room in (self._room, self._later):
                    room.keep(ticket.key, ticket.namespace, wanted, with_nodes=not short.of_quota)
            if not short.of_quota:
                place = len(self._short_of_nodes)
                self._short_of_nodes.append(_Waits(ticket, wanted, pool, place, is_head, is_kept))
                if short.is_unknown:
                    self._unknown.add(ticket.key)
        self._note(ticket, waits)

    def _is_head(self, ticket: Ticket, wanted: tuple[Pods, ...], short: Shortage, pool: Pool) -> bool:
        """Return whether a job is the first that lacks this: quota of its namespace, or these nodes.

        A job that would not fit even on empty nodes can only wait for new ones: it blocks no other job.
        """
        lacks: Hashable = ticket.namespace if short.of_quota else pool
        if lacks in self._heads or not (short.of_quota or self._could_fit(ticket, wanted)):
            return False
        self._heads.add(lacks)
        return True

    def _note(self, ticket: Ticket, decision: QueueDecision) -> None:
        """Note a decision; a job that was scaled up keeps what it holds, and waits for the rest."""
        if ticket.holding is Holding.RESERVED:
            text = f"{self._decisions[ticket.key].text}; {ticket.engines} engines wait: {decision.text}"
            decision = replace(reserved(ticket, ticket.held_engines), text=text, first_since=decision.first_since)
        elif decision.standing is Standing.QUEUED:
            self._line.append(ticket.key)
        self._decisions[ticket.key] = decision

    def _lend(self) -> None:
        """Let one job of each set of nodes have its pods without nodes: those that have failed least come first.

        No job is lent nodes before the first that waits for them, or while pods of another job may take them. A job
        that would not fit even on empty nodes is lent none that are kept for others.
        """
        busy = [
            self._pool(each, without or each.pods)
            for each, without in self._pending
            if without or each.holding is Holding.NOTHING or held_s(each, self._time) < CREDIT_S
        ]
        heads = [each for each in self._short_of_nodes if each.is_head]
        for each in sorted(self._short_of_nodes, key=self._comes_first):
            before = (head.pool for head in heads if head is not each and (head.is_kept or head.place < each.place))
            if any(not each.pool.isdisjoint(other) for other in chain(busy, before)) or not self._may_be_lent(each):
                continue
            ticket = each.ticket
            number = sum(pods.count for pods in each.wanted)
            text = f"{reserved(ticket, None).text}; it is tried whether nodes come for {number} of them"
            first_since = self._decisions[ticket.key].first_since
            self._decisions[ticket.key] = replace(reserved(ticket, ticket.engines), text=text, first_since=first_since)
            if not each.is_kept:
                self._room.take(ticket.key, ticket.namespace, each.wanted, ())
            busy.append(each.pool)

    def _may_be_lent(self, waits: _Waits) -> bool:
        """Return whether a job may have its pods without nodes now, as far as others do not matter."""
        ticket = waits.ticket
        if ticket.retry_at > self._time or not (waits.is_head or not self._could_fit(ticket, waits.wanted)):
            return False
        if ticket.key not in self._unknown and not self._room.could_grow(ticket.namespace, waits.wanted):
            return False
        if waits.is_kept:
            return True  # its part of the quota is kept, too
        found = self._room.find(ticket.namespace, waits.wanted)
        return not (isinstance(found, Shortage) and found.of_quota)  # others may have been given it meanwhile

    def _could_fit(self, ticket: Ticket, wanted: Sequence[Pods]) -> bool:
        return self._room.could_fit(ticket.namespace, wanted)

    def _comes_first(self, waits: _Waits) -> tuple[int, int, tuple[int, float, str]]:
        place = rank(waits.ticket, self._rules)
        return place[0], waits.ticket.revoked, place

    def _number(self) -> None:
        """Give each job that waits its position."""
        waiting = [key for key in self._line if self._decisions[key].standing is Standing.QUEUED]
        for position, key in enumerate(waiting, start=1):
            self._decisions[key] = replace(self._decisions[key], position=position)

    def _frees(self, ticket: Ticket, wanted: tuple[Pods, ...], short: Shortage) -> tuple[str, ...]:
        """Return the jobs whose end makes room for a job, and preempt those that it may; none: it is not enough.

        That room is reserved for it, so no other job gets it.
        """
        found = self._later.find(ticket.namespace, wanted) if self._leaving else short
        if isinstance(found, Shortage):
            victims = self._victims(ticket, wanted)
            if not victims:
                return ()
            self._in_vain.clear()
            for victim in victims:
                self._decisions[victim.key] = preempted(ticket.key)
                self._later.give_back(victim.key)
                self._leaves(replace(victim, holding=Holding.LEAVING, preempted_for=ticket.key))
            found = self._later.find(ticket.namespace, wanted)
            assert not isinstance(found, Shortage)
        for room in (self._room, self._later):
            room.take(ticket.key, ticket.namespace, wanted, found)
        return tuple(self._leaving)

    def _victims(self, ticket: Ticket, wanted: tuple[Pods, ...]) -> tuple[Ticket, ...]:
        """Return the jobs to preempt: lower priorities first, then the newest reservations, and no more than needed.

        Only those are looked at that take what this job lacks: quota of its namespace, or nodes that it could use.
        """
        mine = self._rules.priority_of(ticket)
        shape = mine, ticket.namespace, shape_of(wanted)
        if not mine.preempts or mine.value <= self._lowest or self._tries == 0 or shape in self._in_vain:
            return ()
        nodes = self._room.suitable(wanted)
        below = [
            each
            for each in self._holders.values()
            if each.holding is Holding.RESERVED
            and self._rules.priority_of(each).value < mine.value
            and (each.namespace == ticket.namespace or self._room.nodes_of(each.key) & nodes)
        ]
        below.sort(key=lambda each: (self._rules.priority_of(each).value, -(each.since or 0.0), each.key))
        self._tries -= 1 if below else 0
        found = fewest(below, self._orders(below), lambda leaving: self._fits_without(leaving, ticket, wanted))
        if not found:
            self._in_vain.add(shape)
        return found

    def _orders(self, below: Sequence[Ticket]) -> tuple[Sequence[Ticket], ...]:
        """Return the same jobs largest first, and those first that share their nodes with the fewest others."""
        on: dict[int, int] = {}
        for each in below:
            for node in self._room.nodes_of(each.key):
                on[node] = on.get(node, 0) + 1
        alone = {
            each.key: min((on[node], node) for node in nodes)
            for each in below
            if (nodes := self._room.nodes_of(each.key))
        }
        return sorted(below, key=lambda each: -each.gpus), sorted(below, key=lambda each: alone.get(each.key, (0, 0)))

    def _fits_without(self, leaving: Sequence[Ticket], ticket: Ticket, wanted: tuple[Pods, ...]) -> bool:
        trial = self._later.copy()
        for each in leaving:
            trial.give_back(each.key)
        return not isinstance(trial.find(ticket.namespace, wanted), Shortage)


def _wanted(ticket: Ticket) -> tuple[Pods, ...]:
    return ticket.more if ticket.holding is Holding.RESERVED else ticket.pods


def _queued(ticket: Ticket, text: str) -> QueueDecision:
    retry_at = ticket.retry_at or None
    return QueueDecision(
        Standing.QUEUED, text, first_since=ticket.first_since, revoked=ticket.revoked, retry_at=retry_at
    )


def reserved(ticket: Ticket, engines: int | None) -> QueueDecision:
    """Return the decision about a job that holds room for this many engines."""
    return QueueDecision(
        Standing.RESERVED,
        f"it holds room for {sum(each.count for each in ticket.pods)} pods with {ticket.gpus} slots",
        first_since=ticket.first_since if ticket.holding is Holding.RESERVED else None,
        engines=engines,
        revoked=ticket.revoked,
        granted=ticket.granted,
    )


def preempted(by: str) -> QueueDecision:
    """Return the decision about a job that is preempted for another."""
    return QueueDecision(Standing.PREEMPTED, f"{by} has a higher priority and needs its room", preempted_for=by)


def revoked(ticket: Ticket, why: str, now: float) -> QueueDecision:
    """Return the decision about a job that gives back its reservation; it keeps its age."""
    number = ticket.revoked + 1
    return QueueDecision(
        Standing.REVOKED,
        f"{why}: it gives its room back, and waits for room again",
        first_since=ticket.first_since,
        revoked=number,
        retry_at=now + retry_s(number),
    )


def _text(wanted: tuple[Pods, ...], short: Shortage) -> str:
    """Return what is short, with what is needed of it."""
    needed = total(wanted)
    names = dict.fromkeys(each.resource for each in short.obstacles if each.resource is not None)
    needs = ", ".join(shown(name, needed[name]) for name in names if name in needed)
    return "; ".join([*([f"needs {needs}"] if needs else []), *dict.fromkeys(each.text for each in short.obstacles)])


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def rank(ticket: Ticket, rules: Rules) -> tuple[int, float, str]:
    """Return the key that sorts jobs: higher priorities first, then older jobs. A job keeps its age when it is
    preempted.
    """
    return -rules.priority_of(ticket).value, ticket.created, ticket.key


class Line:
    """The jobs that wait, in their order, which changes with what is given away where namespaces share fairly."""

    def __init__(self, waiting: Iterable[Ticket], rules: Rules, held: Mapping[str, int]) -> None:
        """`held` are the GPUs that each namespace holds."""
        self._rules = rules
        self._held = dict(held)
        self._lines: dict[tuple[int, str], deque[Ticket]] = {}
        for ticket in sorted(waiting, key=lambda ticket: rank(ticket, rules)):
            group = ticket.namespace if rules.fair_share else ""
            self._lines.setdefault((rank(ticket, rules)[0], group), deque()).append(ticket)

    def __iter__(self) -> Iterator[Ticket]:
        while self._lines:
            group = min(self._lines, key=self._comes)
            line = self._lines[group]
            ticket = line.popleft()
            if not line:
                del self._lines[group]
            yield ticket

    def given(self, ticket: Ticket) -> None:
        """Note that a job was given what it wants."""
        self._held[ticket.namespace] = self._held.get(ticket.namespace, 0) + ticket.gpus

    def _comes(self, group: tuple[int, str]) -> tuple[int, int, float, str]:
        priority, namespace = group
        first = self._lines[group][0]
        return priority, self._held.get(namespace, 0), first.created, first.key
