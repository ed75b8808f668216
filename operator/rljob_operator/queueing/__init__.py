"""Which jobs may have their pods now: reservations of quota and nodes, in priority and then in the order of arrival.

    tickets, capacity, now ─► schedule ─► a Turn for each job
                               │  room: what is left of quotas and nodes
                               │  preemption: whom a job of a higher priority may send away
                               └─ protection: what the first in the queue keeps

Everything but `ledger` is pure. The ledger keeps the tickets that reconciles hand in, and the turns of the last pass.
"""
