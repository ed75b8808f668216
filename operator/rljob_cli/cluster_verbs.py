"""What `status`, `top`, `logs` and `plot` do with a cluster: read, and show. They change nothing."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.console import Console, RenderableType

from rljob_api.exits import Exit
from rljob_api.status import Phase
from rljob_cli import job_json, job_logs, screen, top_view, watching
from rljob_cli.cluster import Cluster, ClusterError, LostError, NoObjectError, NotPossibleError, connect
from rljob_cli.job_logs import Log, NoSuchLogError
from rljob_cli.job_page import as_page
from rljob_cli.job_table import as_table
from rljob_cli.jobs import Job, Manifest
from rljob_operator.identity import DASHBOARD_PORT, service_name

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
        typer.echo(f"no RLJobs in {f'namespace {where.namespace}' if where.namespace else 'any namespace'}", err=True)


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


def top(where: Scope, *, as_json: bool) -> None:
    """Show what all do now: on a terminal until interrupted, once elsewhere."""

    def picture(jobs: list[Job]) -> RenderableType:
        return top_view.as_tables(jobs, _now(), where.namespace is None)

    if as_json:
        _write_json(job_json.jobs_value([job for job in where.jobs() if not job.has_ended], _now()))
    elif screen.is_terminal():
        _interruptible(
            lambda: watching.live(
                Console(), ((picture(jobs), trouble) for jobs, trouble in watching.looks(where.jobs)), whole_screen=True
            ),
            Exit.OK,
        )
    else:
        screen.show(picture(where.jobs()))


def logs(where: Scope, name: str, *, engine: str | None, attempt: int | None, follow: bool, tail: int | None) -> None:
    """Write a log to the standard output; with `follow` until nothing more can come."""
    job = where.job(name)
    try:
        log = job_logs.engine_log(job, engine) if engine else job_logs.driver_log(job, attempt)
    except NoSuchLogError as error:
        raise ClusterError(str(error), Exit.NOT_FOUND) from error
    _interruptible(lambda: _write(_read(where.cluster, job, log, follow, tail)), Exit.INTERRUPTED)


def _read(cluster: Cluster, job: Job, log: Log, follow: bool, tail: int | None) -> Iterator[bytes]:
    """Yield a log: by a command on the head, and where that is not possible from Ray through the API server."""
    heads = [head for head in cluster.heads(job) if log.files(head)]
    if not heads:
        raise ClusterError(job_logs.without_pods(job, log), Exit.NOT_FOUND)
    best = max(heads, key=lambda head: len(log.files(head)))
    try:
        yield from _from_files(cluster, job, log, best, follow, tail)
    except NoObjectError as error:
        told = f"{log.what} is not on pod {best['metadata']['name']}: looked for {', '.join(log.files(best))}"
        raise ClusterError(told, Exit.NOT_FOUND) from error
    except NotPossibleError as error:
        if log.attempt is None:
            raise ClusterError(f"{error}; an engine's log is read in no other way", error.exit) from error
        yield from _from_ray(cluster, job, log, follow, tail, error)


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
    while True:
        is_over = over()
        try:
            text: str = cluster.ask_service(job.namespace, service, DASHBOARD_PORT, path)["logs"]
        except ClusterError as error:
            raise ClusterError(f"{instead_of}; nor through the API server's proxy: {error}", error.exit) from error
        yield (text[written:] if written else job_logs.last_lines(text, tail)).encode()
        written = len(text)
        if not goes_on or is_over:
            return
        time.sleep(watching.INTERVAL_S)


class _Over:
    """Tells whether a log that is followed is complete: asks for the job from time to time."""

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
                typer.echo(_json_line(job) if as_json else watching.line(job))

    def pictures() -> None:
        shown = ((watch.picture(jobs), trouble) for jobs, trouble in until_over())
        watching.live(Console(), shown, whole_screen=False)

    _interruptible(pictures if screen.is_terminal() and not as_json else lines, watch.interrupted)
    return last


def _interruptible(work: Callable[[], None], code: Exit) -> None:
    """Do it; Ctrl-C ends the process with this code."""
    try:
        work()
    except KeyboardInterrupt as error:
        raise typer.Exit(code) from error


def _write(chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


def _table(where: Scope, jobs: list[Job]) -> RenderableType:
    return as_table(jobs, _now(), where.namespace is None)


def _page(job: Job) -> RenderableType:
    return as_page(job, _now(), screen.has_colours(), screen.ascii_only())


def _json_line(job: Job) -> str:
    return job_json.as_json(job_json.job_value(job, _now()), one_line=True)


def _write_json(value: object) -> None:
    typer.echo(job_json.as_json(value))


def _now() -> datetime:
    return datetime.now(UTC)
