"""What `status`, `why`, `top`, `logs`, `plot` and `doctor` do with a cluster: read, and show.

They change nothing, except that `logs` starts a pod where a job has none any more, and deletes it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.console import RenderableType

from rljob_api.exits import Exit
from rljob_api.status import Phase
from rljob_cli.cluster import watching, why_verb
from rljob_cli.cluster.cluster import Cluster, ClusterError, LostError, NoObjectError, NotPossibleError, connect
from rljob_cli.jobs import job_evidence, job_json, job_logs, log_reader, queue_view, resumption, top_view, training
from rljob_cli.jobs.job_evidence import names_of
from rljob_cli.jobs.job_logs import EVENTS, Log, NoSuchLogError, Wanted, whole_lines
from rljob_cli.jobs.job_page import as_page
from rljob_cli.jobs.job_table import as_table
from rljob_cli.jobs.jobs import Job, Manifest
from rljob_cli.jobs.resumption import NotResumableError
from rljob_cli.jobs.why import Why, with_health
from rljob_cli.records.run_health import run_health
from rljob_cli.terminal import screen
from rljob_cli.terminal.screen import console, say, say_json
from rljob_operator.identity import DASHBOARD_PORT, JOB_LABEL, RAY_TOKEN_KEY, service_name
from rljob_operator.job.pods import secret_of_ray
from rljob_operator.world.pod_evidence import trouble_of
from rljob_trainer.reporting.events import EventsError, records
from rljob_trainer.reporting.reading.history import NotARunError, history_of

LOOK_S = 5.0
"""between two looks at a job whose log is followed [s]"""
ENDED_FOR_S = 2.0
"""what a driver wrote last may still be on its way [s]"""


@dataclass(frozen=True, slots=True)
class Scope:
    """A cluster, and the namespace that is looked at."""

    cluster: Cluster
    namespace: str | None
    """None: all"""

    def jobs(self) -> list[Job]:
        return self.cluster.jobs(self.namespace)

    def job(self, name: str) -> Job:
        return self.cluster.job(self.namespace or self.cluster.namespace, name)


def scope(kubeconfig: Path | None, context: str | None, namespace: str | None, all_namespaces: bool) -> Scope:
    """Return what a command line means; raises ClusterError when no cluster is configured."""
    cluster = connect(kubeconfig, context)
    return Scope(cluster, None if all_namespaces else namespace or cluster.namespace)


def table(where: Scope, *, as_json: bool, watch: bool) -> None:
    """Show the jobs; with `watch` until interrupted."""
    if watch:
        _watch(_Watch(where.jobs, lambda jobs: _table(where, jobs), lambda jobs: False, Exit.OK), as_json)
        return
    jobs = where.jobs()
    if as_json:
        _write_json(job_json.jobs_value(jobs, _now()))
    elif jobs:
        screen.show(_table(where, jobs))
    else:
        say(f"no RLJobs in {f'namespace {where.namespace}' if where.namespace else 'any namespace'}", err=True)


def page(where: Scope, name: str, *, as_json: bool, watch: bool) -> Exit:
    """Show a job; with `watch` until it has ended, and then return whether it succeeded."""
    if watch:
        only = _Watch(
            lambda: [where.job(name)], lambda jobs: _page(jobs[0]), lambda jobs: jobs[0].has_ended, Exit.INTERRUPTED
        )
        (job,) = _watch(only, as_json)
        return Exit.OK if job.status.phase is Phase.SUCCEEDED else Exit.FAILED
    job = where.job(name)
    if as_json:
        _write_json(job_json.job_value(job, _now()))
    else:
        screen.show(_page(job))
    return Exit.OK


def top(where: Scope, *, queues: bool, as_json: bool) -> None:
    """Show what all do now: on a terminal until interrupted, once elsewhere."""

    def picture(jobs: list[Job]) -> RenderableType:
        view = queue_view.as_tables if queues else top_view.as_tables
        return view(jobs, _now(), where.namespace is None)

    if as_json:
        _write_json(job_json.jobs_value([job for job in where.jobs() if not job.has_ended], _now()))
    elif screen.is_terminal():
        _interruptible(
            lambda: watching.live(
                console(), ((picture(jobs), trouble) for jobs, trouble in watching.looks(where.jobs)), whole_screen=True
            ),
            Exit.OK,
        )
    else:
        screen.show(picture(where.jobs()))


def why(where: Scope, name: str, *, as_json: bool) -> None:
    """Show what a job waits for."""
    job, found = why_verb.explain(where.cluster, where.namespace or where.cluster.namespace, name)
    if job.status.phase in training.SAYS and job.status.progress is not None:
        found = _with_steps(where.cluster, job, found)
    if as_json:
        _write_json(why_verb.value(job, found))
    else:
        why_verb.show(job, found)


def resume(where: Scope, name: str) -> None:
    """Begin another attempt of a failed job."""
    namespace = where.namespace or where.cluster.namespace
    raw = where.cluster.raw_job(namespace, name)
    try:
        patch = resumption.patch_of(raw)
    except NotResumableError as error:
        raise ClusterError(str(error), Exit.USAGE) from error
    where.cluster.change_job(namespace, name, patch)
    say(resumption.says(raw, namespace))


def logs(where: Scope, name: str, wanted: Wanted, *, follow: bool, tail: int | None) -> None:
    """Write a log to the standard output; with `follow` until nothing more can come."""
    job = where.job(name)
    try:
        log = job_logs.wanted_log(job, wanted)
    except NoSuchLogError as error:
        raise ClusterError(str(error), Exit.NOT_FOUND) from error
    _interruptible(lambda: screen.write_log(_shown(where.cluster, job, log, follow, tail)), Exit.INTERRUPTED)


def _with_steps(cluster: Cluster, job: Job, found: Why) -> Why:
    """Return an answer with what the record of all steps says, if a head runs that has it."""
    log = job_logs.step_events(job)
    try:
        heads = [head for head in cluster.heads(job) if log.files(head)]
        if not heads:
            return found
        lines = whole_lines(_from_files(cluster, job, log, heads[0], follow=False, tail=None))
        history = history_of(records(lines, EVENTS), EVENTS)
    except (ClusterError, EventsError, NotARunError) as error:
        return replace(found, evidence=(*found.evidence, ("steps", f"{log.what} cannot be read: {error}")))
    return with_health(found, job, run_health(history, is_active=True))


def _shown(cluster: Cluster, job: Job, log: Log, follow: bool, tail: int | None) -> Iterator[bytes]:
    """Yield the lines of a log that are wanted; the last ones are counted among these."""
    if tail is None or not log.component:
        yield from log.lines(read(cluster, job, log, follow, tail))
    elif follow:
        yield from log.lines(read(cluster, job, log, follow, None))
    else:
        yield from deque(log.lines(read(cluster, job, log, follow, None)), maxlen=tail)


def evidence(where: Scope, name: str) -> tuple[dict[str, bytes], list[str]]:
    """Return the driver's newest log, and what events, pods and status of a job say, by their names; and notes on what
    was not read.
    """
    job = where.job(name)
    inside = f"api/v1/namespaces/{job.namespace}"
    events = where.cluster.readable(f"{inside}/events")
    pods = where.cluster.readable(f"{inside}/pods", f"{JOB_LABEL}={job.name}")
    notes = [f"you may not list {what}" for what, found in (("events", events), ("pods", pods)) if found is None]
    lines = [
        *job_evidence.event_lines(events or (), names_of(job)),
        *(line for pod in pods or () for line in trouble_of(pod)),
    ]
    known = {"status": "\n".join([*lines, *job_evidence.status_lines(job)]).encode()}
    try:
        log = job_logs.driver_log(job, None)
        driver = {log.what: b"".join(read(where.cluster, job, log, follow=False, tail=None))}
    except (NoSuchLogError, ClusterError) as error:
        return known, [*notes, str(error)]
    return driver | known, notes


def read(cluster: Cluster, job: Job, log: Log, follow: bool, tail: int | None) -> Iterator[bytes]:
    """Yield a log: by a command on the head, and where that is not possible from Ray through the API server.

    Raises ClusterError.
    """
    heads = [head for head in cluster.heads(job) if log.files(head)]
    if not heads:
        yield from _from_volume(cluster, job, log, tail)
        return
    best = max(heads, key=lambda head: len(log.files(head)))
    try:
        yield from _from_files(cluster, job, log, best, follow, tail)
    except NoObjectError as error:
        message = f"{log.what} is not on pod {best['metadata']['name']}: looked for {', '.join(log.files(best))}"
        raise ClusterError(message, Exit.NOT_FOUND) from error
    except NotPossibleError as error:
        if log.attempt is None:
            raise ClusterError(f"{error}; there is no other way to read an engine's log", error.exit) from error
        yield from _from_ray(cluster, job, log, follow, tail, error)


def _from_volume(cluster: Cluster, job: Job, log: Log, tail: int | None) -> Iterator[bytes]:
    """Yield a log of a job without pods, by a pod that mounts its volume for as long as it takes."""
    pod = log_reader.reader(job, log) if job.has_ended or job.status.phase is Phase.SUSPENDED else None
    if pod is None:
        raise ClusterError(job_logs.without_pods(job, log), Exit.NOT_FOUND)
    say(f"{job.key} has no pods; starting one that reads its volume", err=True)
    try:
        with cluster.running(pod) as there:
            yield from _from_files(cluster, job, log, there, False, tail)
    except NoObjectError as error:
        raise ClusterError(f"{log.what} is not on the volume: looked for {log.file}", Exit.NOT_FOUND) from error
    except NotPossibleError as error:
        raise ClusterError(f"{job_logs.without_pods(job, log)}; {error}", error.exit) from error


def _from_files(
    cluster: Cluster, job: Job, log: Log, head: Manifest, follow: bool, tail: int | None
) -> Iterator[bytes]:
    goes_on = follow and not job_logs.has_ended(job, log)
    command = job_logs.read_command(log.files(head), tail, goes_on)
    over = _Over(cluster, job, log)
    try:
        yield from cluster.run(head, command, over)
    except LostError:
        # The pods of a job that has ended are freed, and with them goes the command.
        if not (goes_on and over.look()):
            raise


def _from_ray(
    cluster: Cluster, job: Job, log: Log, follow: bool, tail: int | None, instead_of: NotPossibleError
) -> Iterator[bytes]:
    service, path = service_name(job.name, job.uid), f"/api/jobs/{log.submission}/logs"
    over, written = _Over(cluster, job, log), 0
    goes_on = follow and not job_logs.has_ended(job, log)
    token, hint = _ray_token(cluster, job)
    while True:
        is_over = over()
        try:
            text: str = cluster.ask_service(job.namespace, service, DASHBOARD_PORT, path, token)["logs"]
        except ClusterError as error:
            raise ClusterError(
                f"{instead_of}; reading through the API server's proxy failed, too: {error}{hint}", error.exit
            ) from error
        yield (text[written:] if written else job_logs.last_lines(text, tail)).encode()
        written = len(text)
        if not goes_on or is_over:
            return
        time.sleep(watching.INTERVAL_S)


def _ray_token(cluster: Cluster, job: Job) -> tuple[str | None, str]:
    """Return the token that Ray asks for, and why it is missing; pods of older operators have none."""
    try:
        named = [name for head in cluster.heads(job) if (name := secret_of_ray(head)) is not None]
        return cluster.secret(job.namespace, named[0]).get(RAY_TOKEN_KEY) if named else None, ""
    except ClusterError as error:
        return None, f"; Ray's token of the job could not be read: {error}"


class _Over:
    """Finds out whether a log that is followed is complete, by reading the job from time to time."""

    def __init__(self, cluster: Cluster, job: Job, log: Log) -> None:
        self._cluster, self._job, self._log = cluster, job, log
        self._looked_at = time.monotonic()
        self._ended_at: float | None = None

    def __call__(self) -> bool:
        if self._ended_at is None and time.monotonic() - self._looked_at >= LOOK_S and self.look():
            self._ended_at = time.monotonic()
        return self._ended_at is not None and time.monotonic() - self._ended_at >= ENDED_FOR_S

    def look(self) -> bool:
        """Return whether the log is complete, by a look at the job; what cannot be seen is not over."""
        self._looked_at = time.monotonic()
        try:
            return job_logs.has_ended(self._cluster.job(self._job.namespace, self._job.name), self._log)
        except ClusterError as error:
            if error.exit is Exit.UNREACHABLE:
                return False
            if error.exit is Exit.NOT_FOUND:
                return True
            raise


@dataclass(frozen=True, slots=True)
class _Watch:
    """What is looked at again and again."""

    look: Callable[[], list[Job]]
    picture: Callable[[list[Job]], RenderableType]
    is_over: Callable[[list[Job]], bool]
    interrupted: Exit
    """what Ctrl-C means"""


def _watch(watch: _Watch, as_json: bool) -> list[Job]:
    """Show the jobs until it is over, and return them as they were last seen."""
    last: list[Job] = []

    def until_over() -> Iterator[tuple[list[Job], str]]:
        for jobs, trouble in watching.looks(watch.look):
            yield jobs, trouble
            last[:] = jobs
            if watch.is_over(jobs):
                return

    def lines() -> None:
        for jobs, _ in until_over():
            for job in watching.changed(last, jobs):
                if as_json:
                    say_json(_json_line(job))
                else:
                    say(watching.line(job))

    def pictures() -> None:
        shown = ((watch.picture(jobs), trouble) for jobs, trouble in until_over())
        watching.live(console(), shown, whole_screen=False)

    _interruptible(pictures if screen.is_terminal() and not as_json else lines, watch.interrupted)
    return last


def _interruptible(work: Callable[[], None], code: Exit) -> None:
    """Do it; Ctrl-C ends the process with this code."""
    try:
        work()
    except KeyboardInterrupt as error:
        raise typer.Exit(code) from error


def _table(where: Scope, jobs: list[Job]) -> RenderableType:
    return as_table(jobs, _now(), where.namespace is None)


def _page(job: Job) -> RenderableType:
    return as_page(job, _now(), screen.has_colours(), screen.ascii_only())


def _json_line(job: Job) -> str:
    return job_json.as_json(job_json.job_value(job, _now()), one_line=True)


def _write_json(value: object) -> None:
    say_json(job_json.as_json(value))


def _now() -> datetime:
    return datetime.now(UTC)
