"""`rljob top --queues`, and what `rljob why` says of a job in the queue."""

from datetime import timedelta

from rljob_api.status import AttemptStatus, JobProgress, Phase, Queue, Status
from rljob_cli.jobs.jobs import Job, job_of
from rljob_cli.jobs.queue_view import as_tables, gpu_hours
from rljob_cli.jobs.why import Seen, why
from rljob_operator.world.queue_decision import QueueDecision, Standing
from support.api.sample_rljob_status import NOON
from support.cli.sample_job import NOW, text
from support.operator.operator_world import NOW as UNIX_NOW
from support.operator.operator_world import Surroundings, raw_job

TEXT = "needs 4 × nvidia.com/gpu; ResourceQuota gpus leaves 0 × nvidia.com/gpu; 8 × nvidia.com/gpu are in use"
AT = "2026-11-21T12:00:00Z"


def seen(name: str, decision: QueueDecision, namespace: str = "ml", **status: object) -> Job:
    """Return a job whose status shows this decision."""
    around = Surroundings(raw_job(name))
    around.raw["metadata"] |= {"creationTimestamp": AT, "namespace": namespace}
    around.queue_decision = decision
    around.step()
    written = Status.model_validate(around.status)
    assert written.queue is not None
    queue = Queue(**{**written.queue.model_dump(), "since": NOON})
    changed = written.model_copy(update={"queue": queue, **status})
    return job_of({**around.raw, "status": changed.model_dump(mode="json", by_alias=True, exclude_none=True)})


RESERVED = QueueDecision(Standing.RESERVED, "it holds room for 3 pods with 4 slots")
ATTEMPT = AttemptStatus(number=1, cluster="c", start_after=NOON, ended=NOON + timedelta(minutes=5))


def test_jobs_wait_in_the_order_of_their_positions_and_those_whose_end_is_unknown_come_last():
    jobs = [
        seen("a-second", QueueDecision(Standing.QUEUED, TEXT, 2)),
        seen("b-first", QueueDecision(Standing.QUEUED, TEXT, 1)),
        seen("c-unknown", RESERVED),
        seen("d-soon", RESERVED, progress=JobProgress(step=9, eta_seconds=60)),
        seen("e-later", RESERVED, progress=JobProgress(step=9, eta_seconds=90)),
    ]
    words = text(as_tables(jobs, NOW, namespaces=False)).split()
    order = [word for word in words if word in {job.name for job in jobs}]
    assert order == [
        "b-first",
        "a-second",
        "d-soon",
        "e-later",
        "c-unknown",
    ]


def test_the_queue_is_shown_in_its_order_and_who_ends_first_above_others():
    jobs = [
        seen("late", RESERVED, progress=JobProgress(step=1, eta_seconds=7200)),
        seen("soon", RESERVED, namespace="lab", progress=JobProgress(step=9, eta_seconds=60)),
        seen("b", QueueDecision(Standing.QUEUED, TEXT, 2)),
        seen("a", QueueDecision(Standing.QUEUED, TEXT, 1)),
        seen("never", QueueDecision(Standing.NEVER, "ResourceQuota gpus allows 2 × nvidia.com/gpu in all")),
    ]
    assert (
        text(as_tables(jobs, NOW, namespaces=True))
        == f"""\
2 jobs hold 8 GPUs; 3 jobs wait for 12

POS  JOB       GPUS  WAITS  FOR
  1  ml/a         4    10m  {TEXT}
  2  ml/b         4    10m  {TEXT}
  –  ml/never     4    10m  ResourceQuota gpus allows 2 × nvidia.com/gpu in all

JOB       PHASE         GPUS  HELD  ENDS IN
lab/soon  Provisioning     4   10m    1m00s
ml/late   Provisioning     4   10m    2h00m

NAMESPACE  HELD  WANTED  GPU-HOURS
lab           4       0        0.0
ml            4      12        0.0
"""
    )


def test_gpu_hours_are_those_of_all_attempts():
    open_one = AttemptStatus(number=2, cluster="c", start_after=NOON + timedelta(minutes=5))
    job = seen("a", RESERVED, attempts=(ATTEMPT, open_one), gpus=6)
    assert gpu_hours(job, NOON + timedelta(minutes=20)) == 2.0


def test_without_jobs_nobody_holds_and_nobody_waits():
    assert text(as_tables([], NOW, namespaces=True)) == "0 jobs hold 0 GPUs; 0 jobs wait for 0\n"


def test_why_names_the_queue_with_the_position():
    job = seen("a", QueueDecision(Standing.QUEUED, TEXT, 2))
    around = Surroundings(raw_job("a"))
    around.queue_decision = QueueDecision(Standing.QUEUED, TEXT, 2)
    around.step()
    found = why(job, Seen({**around.raw, "metadata": {**around.raw["metadata"], "creationTimestamp": AT}}), UNIX_NOW)
    assert job.status.phase is Phase.QUEUED
    assert found.sentence == f"position 2 in the queue: {TEXT}"
    assert found.blocker == "Queue"
    assert found.since == NOON.timestamp()
    assert ("condition", f"QuotaReserved is False, Queued: position 2 in the queue: {TEXT}") in found.evidence
