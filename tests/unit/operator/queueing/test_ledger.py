"""What the ledger keeps of a ticket when a job shows less than a pass has decided."""

from dataclasses import replace

from rljob_operator.queueing.lease import held_s
from rljob_operator.queueing.ledger import Ledger
from rljob_operator.queueing.ticket import Holding
from support.operator.queue_world import NOW, RULES, holder, quotas, ticket, workers

SEEN = quotas(ml=8)


def test_a_job_that_waits_keeps_its_age_until_its_status_has_it():
    ledger, waits = Ledger(), ticket("waits", workers(8), at=1)
    for each in (holder("holds", workers(8)), waits):
        ledger.put(each, is_shown=True)
    ledger.decide(SEEN, RULES, NOW + 10)
    first = ledger.decision(waits.key).first_since
    assert first == NOW + 10
    ledger.put(waits, is_shown=False)
    assert ledger.tickets[waits.key].first_since == first
    ledger.put(replace(waits, first_since=NOW + 3), is_shown=True)
    assert ledger.tickets[waits.key].first_since == NOW + 3


def test_what_a_leaving_job_holds_is_what_it_held_whatever_it_asks_for_now():
    ledger, holds = Ledger(), holder("holds", workers(8))
    ledger.put(holds, is_shown=True)
    less = replace(holder("holds", workers(2)), holding=Holding.LEAVING)
    ledger.put(less, is_shown=True)
    left = ledger.tickets[holds.key]
    assert (left.pods, left.gpus) == (holds.pods, holds.gpus) == ((workers(8),), 8)


def test_a_job_holds_since_its_reservation_or_since_its_pods_were_due():
    waits = ticket("waits", workers(8))
    assert held_s(waits, 5.0) == 5.0
    assert held_s(replace(waits, since=2.0), 5.0) == 3.0
    assert held_s(replace(waits, since=2.0, due=4.0), 5.0) == 1.0
