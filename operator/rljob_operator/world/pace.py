"""How often the status of a job is written: the first changes at once, and later changes now and then. Pure.

attempts, their ends and orders            ─► at once: orders depend on them
what engines and findings say of the run   ─► a second after the last write, and after some writes every 5 s
everything else                            ─► a second after the last write
"""

from dataclasses import dataclass

from rljob_api.status import AttemptStatus, Condition, ConditionType, Phase, Status

PROMPT = 8
"""writes that come at once"""
VIEW_S = 5.0
"""between two writes after them of what engines and findings say [s]"""
SHORTEST_S = 1.0
"""the same of everything else [s]"""

VIEWS = (
    ConditionType.ENGINES_READY,
    ConditionType.DEGRADED,
    ConditionType.SOUND,
    ConditionType.READY,
    ConditionType.RECONCILING,
    ConditionType.STALLED,
)
"""conditions that follow engines and findings"""
TRAINS = (Phase.TRAINING, Phase.RECOVERING)


@dataclass(frozen=True, slots=True)
class Pace:
    """How much of its writes a job has used up. Each write uses up one, and time gives them back."""

    written_at: float = 0.0
    """when its status was written last, as far as this process knows; 0: never [unix s]"""
    views_back_at: float = 0.0
    """when it has all prompt writes of a view again [unix s]"""
    progress_due_at: float = 0.0
    """when mere progress may be written again, as far as this process knows [unix s]"""

    def after_write(self, now: float) -> "Pace":
        back_at = max(self.views_back_at, now) + VIEW_S
        return Pace(now, min(back_at, now + PROMPT * VIEW_S))

    def wait_s(self, old: Status, new: Status, now: float) -> float:
        """Return how long a status has to wait before it is written [s]; 0 or less: it is due."""
        if _memory(new) != _memory(old):
            return 0.0
        soon_s = self.written_at + SHORTEST_S - now
        if with_view_of(new, old) == old:
            return max(soon_s, self.views_back_at - now - (PROMPT - 1) * VIEW_S)
        return soon_s


def with_view_of(status: Status, old: Status) -> Status:
    """Return the status with what engines and findings said before."""
    before = {each.type: each for each in old.conditions}
    update: dict[str, object] = {
        "progress": old.progress,
        "curve": old.curve,
        "engines": old.engines,
        "conditions": tuple(_view_of(each, before.get(each.type)) for each in status.conditions),
    }
    if status.phase in TRAINS and old.phase in TRAINS:
        update |= {"phase": old.phase, "phase_since": old.phase_since}
    return status.model_copy(update=update)


def _view_of(condition: Condition, old: Condition | None) -> Condition:
    return old if old is not None and condition.type in VIEWS else condition


def _memory(status: Status) -> tuple[object, ...]:
    """Return what orders depend on, and what is said only once."""
    ended = status.completion_time
    attempts = tuple(map(_without_nodes, status.attempts))
    return status.attempt, attempts, status.start_time, ended, status.recovery, status.began, status.release


def _without_nodes(attempt: AttemptStatus) -> AttemptStatus:
    """Return an attempt without the nodes of its pods, which come by the dozen while engines are added."""
    return attempt.model_copy(update={"nodes": None}) if attempt.ended is None else attempt
