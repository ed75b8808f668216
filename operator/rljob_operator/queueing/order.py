"""Who comes first in the queue. Pure."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from rljob_operator.queueing.ticket import Rules, Ticket


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
