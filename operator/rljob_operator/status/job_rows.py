"""What the operator's metrics show of one job: read once for each version of it, not at each scrape. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rljob_api.errors import UNREADABLE
from rljob_api.sections import OUR_MANAGER
from rljob_api.status import Phase
from rljob_operator.attempts.diagnosis import IN_ORDER
from rljob_operator.identity import Manifest, manager
from rljob_operator.status.goodput import OPERATORS
from rljob_operator.world.world import seconds

NEW = "New"
"""instead of the phase of a job that has no status yet"""
UNKNOWN = "Unknown"
"""instead of the code of a failure that is not in the catalogue"""
HOLDING = (Phase.PROVISIONING, Phase.STARTING, Phase.TRAINING, Phase.RECOVERING, Phase.SUSPENDING)
"""phases in which a job has a RayCluster, or is about to have one"""


@dataclass(frozen=True, slots=True)
class JobRow:
    """The values of one job; None: it has none."""

    namespace: str
    name: str
    is_ours: bool
    """whether the operator acts on it, and no other controller"""
    release: str | None
    """NAMESPACE/LEASE of the operator that acts on it; None: none does yet"""
    phase: str
    gpus: float | None
    queued_at: float | None
    """[unix s]"""
    attempt: float
    failure: str | None
    """code of the failure that ended the last attempt of a job that has failed or recovers"""
    saved_at: float | None
    """[unix s]"""
    completed_at: float | None
    """[unix s]"""
    seconds: Mapping[str, float]
    """where its time went, by part that no driver knows"""


def row_of(raw: Manifest) -> JobRow:
    """Return what is shown of a job; what cannot be read of its status is not shown."""
    status: Any = raw.get("status")
    phase = _read(lambda: str(status["phase"])) or NEW
    is_holding, is_queued = phase in HOLDING, phase == Phase.QUEUED
    return JobRow(
        namespace=raw["metadata"]["namespace"],
        name=raw["metadata"]["name"],
        is_ours=_read(lambda: manager(raw)) == OUR_MANAGER,
        release=_read(lambda: str(status["release"])),
        phase=phase,
        gpus=_read(lambda: float(status["gpus"])) if is_holding else None,
        queued_at=_read(lambda: seconds(status["queue"]["since"])) if is_queued else None,
        attempt=_read(lambda: float(status["attempt"])) or 0.0,
        failure=_read(lambda: _failure(status, phase)),
        saved_at=_read(lambda: seconds(status["lastCheckpoint"]["time"])) if is_holding else None,
        completed_at=_read(lambda: seconds(status["completionTime"])),
        seconds=_read(lambda: _seconds(status["progress"]["goodput"]["seconds"])) or {},
    )


def _seconds(parts: Any) -> Mapping[str, float]:
    return {part: float(parts[part]) for part in OPERATORS if part in parts}


Value = TypeVar("Value")


def _read(read: Callable[[], Value]) -> Value | None:
    try:
        return read()
    except UNREADABLE:
        return None


def _failure(status: Any, phase: str) -> str | None:
    """Return the failure of the newest attempt that has ended, unless the job has recovered or was never started."""
    ended = [attempt for attempt in status["attempts"] if "ended" in attempt]
    if not ended or phase in (Phase.SUCCEEDED, Phase.TRAINING) or ended[-1].get("exitCode") in IN_ORDER:
        return None
    return str(ended[-1].get("failure", {}).get("code", UNKNOWN))
