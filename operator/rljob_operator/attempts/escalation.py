"""How an attempt that should end is made to end: each order has a deadline, and a stronger one follows it. Pure.

    suspended:    drain ─► overdue ─► stop ─► overdue ─► delete the RayCluster
    a verdict:                        stop ─► overdue ─► delete the RayCluster

So neither a head that the operator cannot reach nor a driver that ignores its orders holds its pods for ever. What Ray
or the driver says moves no deadline beyond a bound that it does not choose.
"""

from dataclasses import replace

from rljob_api import recovery
from rljob_api.control import RunState, Status
from rljob_api.sections import Recovery
from rljob_operator.world.history import AttemptRecord
from rljob_operator.world.world import ALIVE, ENDED, Driver, DriverState

STOP_S = 180.0
"""from the first order to stop until the RayCluster is deleted; the order is repeated every 60 s [s]"""
SHORTEST_DRAIN_S = 300.0
"""until a suspended driver that has not ended is stopped, however fast its steps are [s]"""
DRAIN_FACTOR = 3.0
"""the same, in measured times of a step and a save: some steps take longer"""
LOCKED_OUT_S = 600.0
"""how long a driver refuses a token that may be a wrong one until it is restarted with the present one [s]"""
LOOK_S = 30.0
"""how long a new operator looks at a driver before it deletes its RayCluster [s]"""


def is_locked_out(record: AttemptRecord, driver: Driver | None, is_token_sure: bool, now: float) -> bool:
    """Return whether a driver that should train has refused the control token for so long that no other will come.

    A proxy or a mesh can refuse, too, so the operator has to know that its token may be a wrong one.
    """
    if driver is None or driver.refuses_since is None or driver.state in ENDED or is_token_sure:
        return False
    is_to_train = record.started is not None and record.verdict is None
    return is_to_train and now - driver.refuses_since >= LOCKED_OUT_S


def is_draining(driver: Driver | None) -> bool | None:
    """Return whether a driver reports that it saves and ends by order, which cannot be taken back; None: not known."""
    if driver is None or driver.status is None or driver.state not in ALIVE:
        return None
    return driver.status.state is RunState.DRAINING and driver.status.eviction is None


def timed(
    before: AttemptRecord, now_known: AttemptRecord, driver: Driver | None, is_suspended: bool, now: float
) -> AttemptRecord:
    """Return the record with the time since which it is drained or stopped; `before` is the record as it was."""
    drains = is_draining(driver)
    if now_known.verdict is None and not is_suspended and not drains:
        return now_known if drains is None else replace(now_known, ending_since=None)
    is_new_order = now_known.verdict is not before.verdict
    since = None if is_new_order else before.ending_since
    return replace(now_known, ending_since=int(now) if since is None else since)


def drain_deadline_s(status: Status | None, policy: Recovery, longest_s: float) -> float:
    """Return how long a driver may take to save and end [s]; None stands for one that has not answered.

    Manifest and driver say what is usual. `longest_s` is the cluster's: another job may wait for the room.
    """
    measured_s = recovery.drain_seconds(status) if status else None
    usual_s = policy.start_timeout_seconds if measured_s is None else DRAIN_FACTOR * measured_s
    return max(SHORTEST_DRAIN_S, min(usual_s, longest_s))


def is_drain_overdue(record: AttemptRecord, driver: Driver, policy: Recovery, longest_s: float, now: float) -> bool:
    """Return whether a driver that is to end has had enough time to save and end.

    When Ray answers again after a silence the time begins again, once: the order may not have arrived before.
    """
    if record.ending_since is None or record.verdict is not None:
        return False
    deadline_s = drain_deadline_s(driver.status, policy, longest_s)
    began: float = record.ending_since
    if driver.state is not DriverState.UNKNOWN:
        began = max(began, min(driver.turned, began + deadline_s))
    return now - began >= deadline_s


def is_stop_overdue(record: AttemptRecord, driver: Driver | None, now: float) -> bool:
    """Return whether an attempt with a verdict has had enough time to stop."""
    if record.verdict is None or record.ending_since is None or driver is None:
        return False
    return now - record.ending_since >= STOP_S and now - driver.since >= LOOK_S
