"""An RLJob as the command line sees it, with the sample status."""

from datetime import timedelta
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType

from rljob_api.control import CurvePoint
from rljob_api.status import Condition, ConditionType, Phase, Status
from rljob_cli.jobs.jobs import Job, Manifest, job_of
from support.api.sample_rljob_status import NOON, SAMPLE
from support.operator.operator_world import raw_job

NOW = NOON + timedelta(minutes=10)


def raw(status: Status = SAMPLE, name: str = "sums", **metadata: Any) -> Manifest:
    """Return the object as the API server shows it, made at noon."""
    given = raw_job(name, training={"steps": 200, "gpusPerNode": 2})
    said = {"creationTimestamp": "2026-11-21T12:00:00Z", "generation": 2, **metadata}
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**given, "metadata": {**given["metadata"], **said}, "status": written}


def job(name: str = "sums", **changes: Any) -> Job:
    """Return a job with these fields of its status changed."""
    return job_of(raw(SAMPLE.model_copy(update=changes), name))


def in_phase(phase: Phase, kind: ConditionType, status: str = "True", **changes: Any) -> Job:
    """Return a job in a phase, with one condition, whose message is `because`."""
    written = Condition(type=kind, status=status, last_transition_time=NOON, reason="Because", message="because")
    return job(phase=phase, conditions=(written,), **changes)


def points(steps: int) -> tuple[CurvePoint, ...]:
    """Return a curve that goes up, with an evaluation at every tenth step."""
    return tuple(
        CurvePoint(step=step, reward=step / steps, accuracy=step / steps / 2 if step % 10 == 0 else None)
        for step in range(1, steps + 1)
    )


def text(what: RenderableType) -> str:
    """Return what a pipe gets."""
    page = StringIO()
    Console(file=page, width=1000, no_color=True).print(what)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())
