"""What is seen of a job from outside, and what its status says of a fault. Pure."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

from rljob_api.control import EngineState
from rljob_api.status import Phase
from rljob_cli.chaos.faults import Role
from rljob_cli.jobs.jobs import Job

ROLES = get_args(Role)


class UnreadableError(ValueError):
    """A pod has answered something else than `in_pod` prints."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An engine whose weights were not verified."""

    engine: str
    age_s: float
    """since then, by the pod's clock [s]"""
    error: str
    samples: int
    """that it made until it was back, and that a step has used"""


@dataclass(frozen=True, slots=True)
class Unequal:
    """Ranks of the learner that had different copies of a parameter."""

    age_s: float
    """since then, by the pod's clock [s]"""
    evidence: str


@dataclass(frozen=True, slots=True)
class Inside:
    """What `in_pod` has found in one pod."""

    processes: dict[str, frozenset[tuple[int, int]]]
    """by role: pid and start of each"""
    hit: int | None
    """pid that got the signal"""
    step: int | None
    """newest step of the run"""
    step_age_s: float
    """since its record was written, by the pod's clock [s]"""
    refused: tuple[Refused, ...] = ()
    """among the newest records of the run"""
    unequal: tuple[Unequal, ...] = ()
    """among the newest records of the run"""


def inside(answer: bytes) -> Inside:
    """Return what `in_pod` has printed. Raises UnreadableError."""
    try:
        raw: Any = json.loads(answer)
        step = raw["step"] or {"step": None, "age": 0.0}
        return Inside(
            {
                role: frozenset((int(each["pid"]), int(each["started"])) for each in raw["processes"][role])
                for role in ROLES
            },
            None if raw["hit"] is None else int(raw["hit"]),
            None if step["step"] is None else int(step["step"]),
            float(step["age"]),
            tuple(
                Refused(str(each["engine"]), float(each["age"]), str(each["error"]), int(each["samples"]))
                for each in raw["refused"]
            ),
            tuple(Unequal(float(each["age"]), str(each["evidence"])) for each in raw["unequal"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableError(f"not an answer of this command: {answer[:100]!r}") from error


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a job."""

    at_s: float
    """since the start [s]"""
    job: Job
    heads: dict[str, Inside] = field(default_factory=dict)
    """by name of the head's pod; those that answer"""

    @property
    def drivers(self) -> int:
        """Number of driver processes in all heads."""
        return sum(len(head.processes["driver"]) for head in self.heads.values())

    @property
    def stepped_at_s(self) -> float:
        """When the newest step was finished, since the start [s]; -inf: not seen."""
        return max(
            (self.at_s - head.step_age_s for head in self.heads.values() if head.step is not None),
            default=float("-inf"),
        )

    @property
    def is_well(self) -> bool:
        """Whether it trains with all of its engines."""
        return self.job.status.phase is Phase.TRAINING and self.job.engines_ready >= self.job.engines_wanted


def said(before: Job, now: Job) -> tuple[str, ...]:
    """Return what the status says of a fault that came between two looks; empty: nothing."""
    return tuple(
        dict.fromkeys(
            (*_steps_of_recovery(before, now), *_ends(before, now), *_engines(before, now), *_began(before, now))
        )
    )


def _steps_of_recovery(before: Job, now: Job) -> Iterator[str]:
    known = {(step.time, step.action, step.target) for step in before.status.recovery}
    for step in now.status.recovery:
        if (step.time, step.action, step.target) not in known:
            yield f"{step.action} {step.target}"


def _ends(before: Job, now: Job) -> Iterator[str]:
    ended = {each.number for each in before.status.attempts if each.ended is not None}
    for each in now.status.attempts:
        if each.ended is not None and each.number not in ended:
            yield f"attempt {each.number} ended with {each.exit_code}: {each.reason}"


def _engines(before: Job, now: Job) -> Iterator[str]:
    items = before.status.engines.items if before.status.engines else ()
    known = {each.name: each for each in items}
    for each in now.status.engines.items if now.status.engines else ():
        old = known.get(each.name)
        if old is not None and each.restarts > old.restarts:
            yield f"{each.name} restarted"
        elif each.state is EngineState.DEAD and (old is None or old.state is not EngineState.DEAD):
            yield f"{each.name} is Dead: {each.last_error}"


def _began(before: Job, now: Job) -> Iterable[str]:
    began = now.status.began
    return (began,) if began and began != before.status.began and before.status.attempt == now.status.attempt else ()
