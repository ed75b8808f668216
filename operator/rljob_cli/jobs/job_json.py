"""RLJobs as JSON for programs: what the pages and tables show, times in RFC 3339, null for what is not known. Pure."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from rljob_cli.jobs.jobs import Job
from rljob_cli.jobs.next_steps import next_steps


def as_json(value: object, *, one_line: bool = False) -> str:
    """Return the text of a JSON document."""
    return json.dumps(value, indent=None if one_line else 2, ensure_ascii=False)


def jobs_value(jobs: Sequence[Job], now: datetime) -> dict[str, Any]:
    """Return what `rljob status` and `rljob top` show."""
    return {"jobs": [job_value(job, now) for job in jobs]}


def job_value(job: Job, now: datetime) -> dict[str, Any]:
    """Return what `rljob status NAME` shows."""
    status, progress = job.status, job.status.progress
    return {
        "namespace": job.namespace,
        "name": job.name,
        "phase": status.phase,
        "phase_since": _time(status.phase_since),
        "message": job.explanation,
        "age_seconds": max(0, round((now - job.created).total_seconds())),
        "step": job.step,
        "steps": job.steps,
        "reward": progress.reward if progress else None,
        "accuracy": progress.accuracy if progress else None,
        "perplexity": progress.perplexity if progress else None,
        "held_out_perplexity": progress.held_out_perplexity if progress else None,
        "evaluation_sets": (progress.evaluation_sets if progress else None) or {},
        "eta_seconds": progress.eta_seconds if progress and not job.has_ended else None,
        "rollout_tokens_per_second": _speed(job, "rollout"),
        "train_tokens_per_second": _speed(job, "train"),
        "step_seconds": _plain(progress.step_seconds) if progress and progress.step_seconds else None,
        "weight_version": progress.weight_version if progress else None,
        "goodput": _plain(progress.goodput) if progress and progress.goodput else None,
        "gpus": status.gpus,
        "engines_ready": job.engines_ready,
        "engines_wanted": job.engines_wanted,
        "engines": [_plain(engine) for engine in status.engines.items] if status.engines else [],
        "attempts": [_plain(attempt) for attempt in status.attempts],
        "recovery": [_plain(step) for step in status.recovery],
        "last_checkpoint": _plain(status.last_checkpoint) if status.last_checkpoint else None,
        "directory": status.directory,
        "next": [step._asdict() for step in next_steps(job, now)],
    }


def _speed(job: Job, kind: str) -> float | None:
    progress = job.status.progress
    speeds = progress.tokens_per_second if progress else None
    return _plain(speeds)[kind] if speeds else None


def _plain(part: BaseModel) -> dict[str, Any]:
    return part.model_dump(mode="json")


def _time(time: datetime | None) -> str | None:
    return time.isoformat().replace("+00:00", "Z") if time else None
