"""Which jobs may have their pods now: reservations of quota and nodes, in priority and then in the order of arrival.

    tickets, capacity, now ─► schedule ─► a Turn for each job
                               │  room: what is left of quotas and nodes
                               │  preemption: whom a job of a higher priority may send away
                               └─ what the first in the queue keeps

Pure. The reconcile loop does not ask it yet: jobs get their pods at once, or wait for Kueue.
"""
