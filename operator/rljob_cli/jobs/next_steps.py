"""What a person may do next about a job, as sentences with the command to type. Pure."""

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from rljob_api.exits import Exit
from rljob_api.sections import OUR_MANAGER
from rljob_api.status import Phase
from rljob_cli.jobs.jobs import Job

PATIENCE: Final = timedelta(minutes=5)
"""pods that are not ready after this time are probably not about to be"""
OPERATOR: Final = "kubectl get pods -A -l app.kubernetes.io/name=rljob-operator"

ADVICE: Final = {
    Exit.BAD_MANIFEST: "fix the manifest, and apply it under another name",
    Exit.OUT_OF_MEMORY: "lower spec.training.maxTokensPerGpu or spec.rollout.memoryFraction; apply under another name",
    Exit.BAD_INPUT: "fix the files that the message names",
    Exit.DIVERGED: "lower spec.training.optimizer.learningRate, and apply under another name",
    Exit.AWAY: "see that what the message names answers again: the judge, the pods of tools, or the volume",
    Exit.STALLED: "check the last lines of the log for the phase that hung",
}
"""by the exit code of the last attempt"""


class NextStep(NamedTuple):
    """What to do, and the command for it if there is one."""

    text: str
    command: str | None = None


def next_steps(job: Job, now: datetime) -> tuple[NextStep, ...]:
    """Return what a person may do about the job; nothing has to be done where a step only looks."""
    where = f"-n {job.namespace}"
    if job.managed_by != OUR_MANAGER and job.status.phase is None:
        return (NextStep(f"nothing here: {job.managed_by} manages it"),)
    if job.status.phase is None or (job.is_outdated and now - job.created > PATIENCE):
        return (NextStep("check that an operator runs", OPERATOR), _why(job))
    follow = NextStep("follow the driver's log", f"rljob logs {job.name} {where} -f")
    plot = NextStep("see the curve", f"rljob plot {job.name} {where}")
    match job.status.phase:
        case Phase.INVALID:
            return (NextStep("fix the manifest and apply it again", "rljob validate FILE"),)
        case Phase.QUEUED:
            return (NextStep("wait for GPUs, or see which jobs hold them", "rljob top -A"),)
        case Phase.PROVISIONING:
            return _provisioning(job, now)
        case Phase.STARTING:
            return (follow,)
        case Phase.TRAINING:
            return (follow, plot)
        case Phase.RECOVERING:
            return _recovering(job)
        case Phase.SUSPENDING:
            return (NextStep("wait until it has saved", f"kubectl get rljob {job.name} {where} --watch"),)
        case Phase.SUSPENDED:
            patch = """'{"spec":{"suspend":false}}'"""
            return (NextStep("resume", f"kubectl patch rljob {job.name} {where} --type=merge -p {patch}"),)
        case Phase.SUCCEEDED:
            return (plot,)
        case Phase.FAILED:
            return _failed(job)


def _provisioning(job: Job, now: datetime) -> tuple[NextStep, ...]:
    if job.status.phase_since is None or now - job.status.phase_since < PATIENCE:
        return (NextStep("wait for the pods", f"rljob status {job.name} -n {job.namespace} --watch"),)
    return (_why(job),)


def _why(job: Job) -> NextStep:
    return NextStep("see what it waits for", f"rljob why {job.name} -n {job.namespace}")


def _recovering(job: Job) -> tuple[NextStep, ...]:
    where = f"-n {job.namespace}"
    wait = NextStep("nothing: the operator recovers it")
    looks = [
        NextStep(f"see why {engine.name} failed", f"rljob logs {job.name} {where} --engine {engine.name} --tail 50")
        for engine in job.unwell[:1]
    ]
    ended = [attempt for attempt in job.status.attempts if attempt.ended is not None]
    looks += [
        NextStep(
            f"see why attempt {attempt.number} ended",
            f"rljob logs {job.name} {where} --attempt {attempt.number} --tail 50",
        )
        for attempt in ended[-1:]
        if not looks
    ]
    return (wait, *looks)


def _failed(job: Job) -> tuple[NextStep, ...]:
    last = job.attempt
    log = NextStep("see where the logs are", f"rljob logs {job.name} -n {job.namespace}")
    advice = next((text for code, text in ADVICE.items() if last is not None and last.exit_code == code), None)
    again = NextStep("then resume it from its newest checkpoint", f"rljob resume {job.name} -n {job.namespace}")
    can_resume = last is not None and last.exit_code != Exit.BAD_MANIFEST
    return (*([NextStep(advice)] if advice else []), log, *([again] if can_resume else []))
