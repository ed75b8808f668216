"""How long a job may hold a reservation whose pods do not run, and when it may try again. Pure.

Pods for which no nodes exist are tried where nodes may come: an autoscaler sees pods, not queues. Each try that
brings no nodes makes the next one shorter and later, so jobs that can never run cost the others minutes, not days.
"""

from rljob_operator.queueing.ticket import Ticket

CREDIT_S = 900.0
"""how long pods may wait for nodes that do not exist yet, if no try has failed [s]"""
SHORTEST_CREDIT_S = 60.0
"""the same after many tries: an autoscaler sees pods within seconds, and nodes that come later are found in any case"""
LEASE_S = 1800.0
"""how long a reservation counts that the status of its job does not show: it cannot be written [s]"""
RETRY_S = 900.0
"""from the first reservation that was given back to the next try; it doubles each time [s]"""
LONGEST_RETRY_S = 6 * 3600.0


def credit_s(failures: int) -> float:
    """Return how long a job's pods may wait for nodes, after this number of failed tries [s]."""
    return max(SHORTEST_CREDIT_S, CREDIT_S / (1 << min(failures, 10)))


def retry_s(revoked: int) -> float:
    """Return how long a job that gave back this number of reservations waits for its next try."""
    return min(LONGEST_RETRY_S, RETRY_S * (1 << min(max(revoked - 1, 0), 10)))


def held_s(ticket: Ticket, now: float) -> float:
    """Return how long a job has been able to start its pods."""
    return now - max(ticket.since or 0.0, ticket.due or 0.0)


def is_bound(ticket: Ticket) -> bool:
    """Return whether all pods of a job are on nodes."""
    return all(len(ticket.bound.get(each.group, ())) >= each.count for each in ticket.pods)
