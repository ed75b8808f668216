"""What an answer of Ray or of the driver adds to what is known of the driver, and whether that is news. Pure."""

from dataclasses import dataclass, replace
from enum import Enum, auto

from rljob_api.control import EngineState, Progress, Status
from rljob_api.recovery import signs_of_life
from rljob_operator.world import SILENT_S, Driver, DriverState


@dataclass(frozen=True, slots=True)
class RayAnswer:
    """What Ray says of a driver."""

    state: DriverState
    exit_code: int | None = None
    message: str = ""


class News(Enum):
    """How much has changed about a driver, or about the turn of a job."""

    NOTHING = auto()
    PROGRESS = auto()
    """it continues, or waits: nothing has to be done, and writing it into the status can wait"""
    CHANGE = auto()


def after_answer(driver: Driver, answer: RayAnswer, now: float) -> Driver:
    """Return the driver after an answer of Ray."""
    # Unreachable time does not count as silence.
    since = now if driver.state is DriverState.UNKNOWN else driver.since
    return replace(driver, state=answer.state, exit_code=answer.exit_code, message=answer.message, since=since)


def after_no_answer(driver: Driver, answered_at: float, now: float) -> Driver:
    """Return the driver after a failed request to Ray, whose last answer came at `answered_at` [unix s]."""
    return replace(driver, state=DriverState.UNKNOWN) if now - answered_at > SILENT_S else driver


def after_report(driver: Driver, status: Status, attempt: int, now: float) -> Driver | None:
    """Return the driver of this attempt after a status report; None: the report is another attempt's.

    A driver of an older attempt that has not ended yet still holds the port.
    """
    if status.attempt != attempt:
        return None
    is_alive = driver.status is None or signs_of_life(status) != signs_of_life(driver.status)
    return replace(driver, status=status, beat_at=now if is_alive else driver.beat_at, refuses_since=None)


def after_refusal(driver: Driver, now: float) -> Driver:
    """Return the driver after it has refused the control token."""
    return driver if driver.refuses_since is not None else replace(driver, refuses_since=now)


def news_of(before: Driver, now: Driver) -> News:
    """Return what is new about a driver."""
    if before.status == now.status and replace(before, beat_at=0.0) == replace(now, beat_at=0.0):
        return News.NOTHING
    # While an engine is unhealthy, its back-off depends on time, so every report is a reason to reconcile.
    engines = now.status.engines if now.status else ()
    goes_on = all(engine.state is EngineState.HEALTHY for engine in engines)
    return News.PROGRESS if goes_on and _without_progress(before) == _without_progress(now) else News.CHANGE


def _without_progress(driver: Driver) -> Driver:
    if driver.status is None:
        return replace(driver, beat_at=0.0)
    nothing = {"revision": 0, "phase": "", "phase_since": 0.0, "longest_phase_seconds": 0.0, "heartbeat": 0.0}
    return replace(driver, beat_at=0.0, status=driver.status.model_copy(update={**nothing, "progress": Progress()}))
