"""What the eviction of a pod means for the run. Pure.

A pod with the driver or a rank of the learner ends the run: it saves first. A pod with engines does not, as long as
other engines serve: they are replaced while the run continues.
"""

from collections.abc import Sequence

from rljob_api.control import EngineState, EngineStatus, Eviction, Status
from rljob_api.recovery import stall_deadline_s
from rljob_api.sections import Recovery

SERVING = (EngineState.HEALTHY, EngineState.SUSPECT)


def ends_the_run(eviction: Eviction, engines: Sequence[EngineStatus]) -> bool:
    """Return whether the run cannot continue without the pod."""
    if eviction.holds == "Learner":
        return True
    nodes = {engine.node for engine in engines if engine.state in SERVING}
    return nodes == {eviction.node}


def is_stalled(status: Status, now: float) -> bool:
    """Return whether the main thread has shown no sign of life for so long that it will not save [unix s]."""
    return bool(status.heartbeat) and now - status.heartbeat > stall_deadline_s(status, Recovery())
