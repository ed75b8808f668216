"""How an attempt that should end is made to end: each order has a deadline, and a stronger one follows it. Pure.

    suspended:    drain ─► overdue ─► stop ─► overdue ─► delete the RayCluster
    a verdict:                        stop ─► overdue ─► delete the RayCluster

So neither a head that the operator cannot reach nor a driver that ignores its orders holds its pods for ever.
"""

from dataclasses import replace

from rljob_api import recovery
from rljob_api.control import Status
from rljob_api.sections import Recovery
from rljob_operator.history import AttemptRecord
from rljob_operator.world import ENDED, Driver

STOP_S = 180.0
"""from the first order to stop until the RayCluster is deleted; the order is repeated every 60 s [s]"""
SHORTEST_DRAIN_S = 300.0
"""until a suspended driver that has not ended is stopped, however fast its steps are [s]"""
DRAIN_FACTOR = 3.0
"""the same, in measured times of a step and a save: some steps take longer"""
LOCKED_OUT_S = 60.0
"""how long a driver refuses the control token until it is restarted with the present one [s]"""
LOOK_S = 30.0
"""how long a new operator looks at a driver before it deletes its RayCluster [s]"""


def is_locked_out(record: AttemptRecord, driver: Driver | None, now: float) -> bool:
    """Return whether a driver that should train has refused the control token for so long that no other will come."""
    if driver is None or driver.refuses_since is None or driver.state in ENDED:
        return False
    is_to_train = record.started is not None and record.verdict is None
    return is_to_train and now - driver.refuses_since >= LOCKED_OUT_S


def timed(before: AttemptRecord, now_known: AttemptRecord, is_suspended: bool, now: float) -> AttemptRecord:
    """Return the record with the time since which it is drained or stopped; `before` is the record as it was."""
    if now_known.verdict is None and not is_suspended:
        return replace(now_known, ending_since=None)
    is_new_order = now_known.verdict is not before.verdict
    since = None if is_new_order else before.ending_since
    return replace(now_known, ending_since=int(now) if since is None else since)


def drain_deadline_s(status: Status | None, policy: Recovery) -> float:
    """Return how long a driver may take to save and end [s]; None stands for one that has not answered."""
    measured_s = recovery.drain_seconds(status) if status else None
    usual_s = policy.start_timeout_seconds if measured_s is None else DRAIN_FACTOR * measured_s
    return max(SHORTEST_DRAIN_S, usual_s)


def is_drain_overdue(record: AttemptRecord, driver: Driver, policy: Recovery, now: float) -> bool:
    """Return whether a suspended driver has had enough time to save and end.

    The time begins again when Ray answers after a silence: the order may not have arrived before.
    """
    if record.ending_since is None or record.verdict is not None:
        return False
    return now - max(record.ending_since, driver.since) >= drain_deadline_s(driver.status, policy)


def is_stop_overdue(record: AttemptRecord, driver: Driver | None, now: float) -> bool:
    """Return whether an attempt with a verdict has had enough time to stop."""
    if record.verdict is None or record.ending_since is None or driver is None:
        return False
    return now - record.ending_since >= STOP_S and now - driver.since >= LOOK_S
