"""What the status of a job and the events of its objects say about a failure, as lines of a log. Pure."""

from collections.abc import Iterable, Sequence

from rljob_api.status import ConditionType
from rljob_cli.jobs.jobs import Job, Manifest
from rljob_operator.world.pod_stage import MEANING, Stage

BEFORE_START = (Stage.SANDBOX, Stage.VOLUMES)
"""what a pod has behind it when a container of it has started"""


def status_lines(job: Job) -> list[str]:
    """Return what the job's status says of the newest attempt that has ended, with the time first.

    While the next attempt runs, its log and its pods show nothing of what ended the one before.
    """
    attempt = next((each for each in reversed(job.status.attempts) if each.ended or each.reason), None)
    lines = [
        f"condition {each.type} {each.reason}: {each.message}"
        for each in job.status.conditions
        if each.type != ConditionType.SUCCEEDED or each.status == "True"  # the word alone would be a success
    ]
    if attempt and attempt.reason:
        code = "" if attempt.exit_code is None else f" with exit code {attempt.exit_code}"
        lines.append(f"{_time(attempt.ended)} attempt {attempt.number} ended{code}: {attempt.reason}".strip())
    if attempt and attempt.failure:
        lines.append(f"{_time(attempt.ended)} attempt {attempt.number}: {attempt.failure.evidence}")
    return lines


def event_lines(events: Iterable[Manifest], names: Sequence[str]) -> list[str]:
    """Return the events of objects whose names begin so, oldest first, as `kubectl get events` shows them.

    A pod that has started got its volumes and its network after all: what failed before is left out.
    """
    ours = [event for event in events if event["involvedObject"].get("name", "").startswith(tuple(names))]
    started = {_object(event): _when(event) for event in sorted(ours, key=_when) if event.get("reason") == "Started"}
    ours = [
        event
        for event in ours
        if MEANING.get(event.get("reason", "")) not in BEFORE_START or _when(event) > started.get(_object(event), "")
    ]
    return [
        f"{_when(event)} {event.get('type', 'Normal')} {event.get('reason', '')} "
        f"{event['involvedObject'].get('kind', '').lower()}/{event['involvedObject'].get('name', '')} "
        f"{event.get('message', '')}{_times(event)}"
        for event in sorted(ours, key=_when)
    ]


def names_of(job: Job) -> list[str]:
    """Return with what the names of the job's objects begin: its own, and its RayClusters'."""
    clusters = [job.attempt.cluster] if job.attempt else []
    return [job.name, *clusters]


def _object(event: Manifest) -> str:
    return str(event["involvedObject"].get("name", ""))


def _times(event: Manifest) -> str:
    """Return how often it happened: a pod is not ready at first, and one that never is ready is a failure."""
    return f" (x{event['count']})" if (event.get("count") or 1) > 1 else ""


def _when(event: Manifest) -> str:
    found = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    return str(found or "")


def _time(moment: object) -> str:
    return str(moment or "")
