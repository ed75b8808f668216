"""Which jobs may have their pods now: reservations of quota and nodes, in priority and then in the order of arrival.

    tickets, capacity, now ─► schedule ─► a QueueDecision for each job
                               │  room: what is left of quotas and nodes
                               │  preemption: the jobs that one of a higher priority may preempt
                               └─ what the first in the queue keeps

Pure. `reservations.py` makes the passes; jobs that wait for Kueue take no part, but for the room that their pods take.
"""
