"""What an answer of Ray or of the driver adds to what is known of the driver, and whether that is news. Pure."""

from dataclasses import dataclass, replace
from enum import Enum, auto
from math import isfinite

from rljob_api.control import EngineState, Progress, Status
from rljob_api.recovery import signs_of_life
from rljob_operator.world.world import SILENT_S, Driver, DriverState

GRACE = 6
"""answers of Ray after a silence until the driver's report counts as missing: Ray is asked every 5 s"""
MOST_CODE = 2**31


@dataclass(frozen=True, slots=True)
class RayAnswer:
    """What Ray says of a driver."""

    state: DriverState
    exit_code: int | None = None
    message: str = ""


class News(Enum):
    """How much has changed about a driver, or what the queue has decided about a job."""

    NOTHING = auto()
    PROGRESS = auto()
    """it continues, or waits: nothing has to be done, and writing it into the status can wait"""
    CHANGE = auto()


def after_answer(driver: Driver, answer: RayAnswer, now: float) -> Driver:
    """Return the driver after an answer of Ray."""
    # A proxy refuses for a moment, a driver with another token for ever.
    refuses_since = driver.refuses_since if now - driver.refused_at <= SILENT_S else None
    seen = replace(driver, state=answer.state, exit_code=answer.exit_code, message=answer.message)
    seen = replace(seen, refuses_since=refuses_since)
    left = max(0, driver.grace - 1) if driver.grace is not None else None
    if driver.state is not DriverState.UNKNOWN:
        return replace(seen, grace=left)
    # The first report after a silence takes a moment. Only one silence gives time for it: a head that answers now and
    # then must not put off the end of a driver that hangs.
    return replace(seen, turned_at=now, grace=GRACE if left is None else left)


def after_no_answer(driver: Driver, answered_at: float, now: float) -> Driver:
    """Return the driver after a failed request to Ray, whose last answer came at `answered_at` [unix s]."""
    if now - answered_at <= SILENT_S or driver.state is DriverState.UNKNOWN:
        return driver
    return replace(driver, state=DriverState.UNKNOWN, turned_at=answered_at)


def after_report(driver: Driver, status: Status, attempt: int, now: float) -> Driver | None:
    """Return the driver of this attempt after a status report; None: the report is another attempt's.

    A driver of an older attempt that has not ended yet still holds the port.
    """
    if status.attempt != attempt:
        return None
    is_alive = driver.status is None or signs_of_life(status) != signs_of_life(driver.status)
    seen = replace(driver, status=status, refuses_since=None)
    return replace(seen, beat_at=now, grace=None) if is_alive else seen


def bare(driver: Driver) -> Driver:
    """Return the driver without all that is said about it but whether it lives."""
    known = driver.status
    code = driver.exit_code if isinstance(driver.exit_code, int) and abs(driver.exit_code) < MOST_CODE else None
    if known is not None:
        heartbeat = known.heartbeat if isfinite(known.heartbeat) else 0.0
        known = Status(attempt=known.attempt, state=known.state, heartbeat=heartbeat)
    return replace(driver, status=known, message="", exit_code=code)


def after_refusal(driver: Driver, now: float) -> Driver:
    """Return the driver after it, or something in its place, has refused the control token."""
    since = now if driver.refuses_since is None else driver.refuses_since
    return replace(driver, refuses_since=since, refused_at=now)


def news_of(before: Driver, now: Driver) -> News:
    """Return what is new about a driver."""
    if before.status == now.status and _without_times(before) == _without_times(now):
        return News.NOTHING
    # While an engine is unhealthy, its back-off depends on time, so every report is a reason to reconcile.
    engines = now.status.engines if now.status else ()
    goes_on = all(engine.state is EngineState.HEALTHY for engine in engines)
    return News.PROGRESS if goes_on and _without_progress(before) == _without_progress(now) else News.CHANGE


def _without_times(driver: Driver) -> Driver:
    return replace(driver, beat_at=0.0, grace=None, turned_at=0.0, refused_at=0.0)


def _without_progress(driver: Driver) -> Driver:
    if driver.status is None:
        return _without_times(driver)
    nothing = {"revision": 0, "phase": "", "phase_since": 0.0, "longest_phase_seconds": 0.0, "heartbeat": 0.0}
    return replace(_without_times(driver), status=driver.status.model_copy(update={**nothing, "progress": Progress()}))
