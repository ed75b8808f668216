"""Where the time of a job went since its creation: what its drivers say, with the parts that only the operator knows.

    creation ─► queue ─► provision ─► first driver: start, load, steps ... ─┬─► recovery ─► next driver ...
                                                                            └─► detection, backOff, pods; queue

A driver knows the time between two attempts as one number, `recovery`. The records of the attempts split it; what they
do not explain is `detection`: the step in work, and the time until its end was seen. All parts add up. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rljob_api.control import EFFECTIVE, RECOVERY, SUSPENDED, Goodput
from rljob_api.exits import Cause
from rljob_operator.world.history import AttemptRecord, JobHistory

QUEUE = "queue"
PROVISION = "provision"
DETECTION = "detection"
BACK_OFF = "backOff"
PODS = "pods"
WORDS: Mapping[str, str] = {PROVISION: "first pods", BACK_OFF: "back-off", PODS: "new pods", "redone": "repeated steps"}
"""of parts whose names do not explain themselves"""
OPERATORS = (QUEUE, SUSPENDED, PROVISION, DETECTION, BACK_OFF, PODS)
"""parts that no driver knows"""
NAMED = 3
"""losses in a sentence"""
NAMED_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The times of a job that its driver does not know."""

    created: float
    """[unix s]"""
    attempts: tuple[AttemptRecord, ...]
    started: float
    """when the first driver was seen running [unix s]"""
    ended: int | None = None
    """when the job ended; None: it has not [unix s]"""

    def gaps(self, last: int) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return the seconds before the first start of a driver, and those between later attempts until the start of
        attempt `last`, by part.

        Of a job with more attempts than a status holds, all time before the first start counts as queue.
        """
        kept = [each for each in self.attempts if each.number <= last]
        if not kept or kept[0].number > 1:
            return {QUEUE: self.started - self.created}, _between(kept)
        first = next((index for index, each in enumerate(kept) if each.started is not None), len(kept))
        return _parts(self.created, kept[: first + 1], PROVISION), _between(kept[first:])


def lifetime(history: JobHistory, created: str) -> Lifetime | None:
    """Return the times of a job with this history; None: no driver has run. `created` is RFC 3339."""
    if history.started is None or not created:
        return None
    began = min(datetime.fromisoformat(created).timestamp(), history.started)
    return Lifetime(began, history.attempts, history.started, history.outcome.at if history.outcome else None)


def since_creation(told: Goodput, attempt: int, life: Lifetime, gpus: int) -> Goodput:
    """Return where the time went since the creation of a job; `told` is what the driver of this attempt says."""
    known = life.started - life.created + told.wall_seconds
    rest = max(0.0, life.ended - life.created - known) if life.ended is not None else 0.0
    before, between = life.gaps(attempt if life.ended is None else life.attempts[-1].number)
    lost = told.seconds.get(RECOVERY, 0.0) + rest
    between = _at_most(lost, between)
    others = {part: seconds for part, seconds in told.seconds.items() if part != RECOVERY}
    seconds = _sum((others, before, between, {DETECTION: lost - sum(between.values())}))
    wall, suspended = known + rest, seconds.get(SUSPENDED, 0.0)
    without_gpus = between.get(QUEUE, 0.0) + between.get(SUSPENDED, 0.0)
    return Goodput(
        wall_seconds=wall,
        effective_share=_share(told.effective_share * told.wall_seconds, wall - suspended),
        seconds={part: seconds[part] for part in sorted(seconds, key=lambda part: -seconds[part])},
        lost_gpu_seconds=max(0.0, told.lost_gpu_seconds + gpus * (before.get(PROVISION, 0.0) + rest - without_gpus)),
    )


def at_the_end(written: Goodput, life: Lifetime) -> Goodput:
    """Return what a status says of a job's time with the rest of it, after its last driver has said nothing more."""
    rest = life.ended - life.created - written.wall_seconds if life.ended is not None else 0.0
    if rest < 1.0 or not set(OPERATORS) & set(written.seconds):
        return written  # an older operator has written what its driver said
    suspended = written.seconds.get(SUSPENDED, 0.0)
    effective = written.effective_share * (written.wall_seconds - suspended)
    return written.model_copy(
        update={
            "wall_seconds": written.wall_seconds + rest,
            "effective_share": _share(effective, written.wall_seconds + rest - suspended),
            "seconds": _sum((written.seconds, {DETECTION: rest})),
        }
    )


def sentence(goodput: Goodput) -> str:
    """Return `trained 91 % of 3 h 12 min; 6 min queue, 5 min load`, with the largest losses."""
    suspended = goodput.seconds.get(SUSPENDED, 0.0)
    wall = goodput.wall_seconds - suspended
    losses = [each for each in goodput.seconds.items() if each[0] not in (*EFFECTIVE, SUSPENDED)]
    named = sorted((each for each in losses if each[1] >= NAMED_SHARE * wall), key=lambda each: -each[1])[:NAMED]
    parts = [f"{duration(seconds)} {WORDS.get(part, part)}" for part, seconds in named]
    text = f"trained {goodput.effective_share:.0%} of {duration(wall)}".replace("%", " %")
    text += f", after {duration(suspended)} suspended" if suspended >= 1.0 else ""
    return "; ".join([text, *([", ".join(parts)] if parts else [])])


def duration(seconds: float) -> str:
    """Return `40 s`, `6 min`, `3 h 12 min` or `2 d 5 h`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _between(attempts: Sequence[AttemptRecord]) -> Mapping[str, float]:
    """Return the seconds from the end of the first of these attempts on in which no driver ran, by part."""
    if not attempts:
        return {}
    first, *others = attempts
    return _parts(_end(first), others, PODS, first)


def _parts(
    end: float, attempts: Sequence[AttemptRecord], pods: str, previous: AttemptRecord | None = None
) -> Mapping[str, float]:
    """Return the seconds in which no driver ran, from a time on. Times that contradict each other count as none."""
    found: dict[str, float] = {}
    for each in attempts:
        wanted = max(end, each.asked or end)
        due = max(wanted, each.start_after)
        began = max(due, each.started or each.ended or due)
        _add(found, SUSPENDED, wanted - end)
        _add(found, BACK_OFF if _backs_off(previous) else QUEUE, due - wanted)
        _add(found, pods, began - due)
        end, previous = max(began, _end(each)), each
    return found


def _end(attempt: AttemptRecord) -> float:
    return float(attempt.ended or attempt.started or attempt.start_after)


def _backs_off(previous: AttemptRecord | None) -> bool:
    """Return whether an attempt waits because the one before it has failed, and not for room."""
    return previous is not None and previous.ended is not None and previous.for_policy().cause is not Cause.SUSPENDED


def _at_most(most: float, parts: Mapping[str, float]) -> dict[str, float]:
    """Return parts that are not longer than this together: the operator sees a start a little later than the driver."""
    total = sum(parts.values())
    return dict(parts) if total <= most else {part: seconds * most / total for part, seconds in parts.items()}


def _sum(all_parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for parts in all_parts:
        for part, seconds in parts.items():
            _add(found, part, seconds)
    return found


def _add(parts: dict[str, float], part: str, seconds: float) -> None:
    if seconds > 0.0:
        parts[part] = parts.get(part, 0.0) + seconds


def _share(effective: float, wall: float) -> float:
    return min(1.0, effective / wall) if wall > 0.0 else 0.0
