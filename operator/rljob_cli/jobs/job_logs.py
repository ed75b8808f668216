"""Where a log of a job lies, and how it is read from there. Pure.

A driver's log is on its head while that pod lives, in Ray's directory, and in the run's directory for as long as the
volume. What the learner's ranks write is in it, with a prefix of Ray's. All other logs are in the run's directory
alone. Every head mounts that directory.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rljob_api.control import DRIVER_LOG, ENGINE_LOG, REWARD_LOG, STACKS_LOG
from rljob_api.exits import Exit
from rljob_cli.jobs.jobs import Job, Manifest, nearest
from rljob_operator.identity import RAY_CLUSTER_LABEL, submission_id
from rljob_trainer.rundir import names

RAY_LOGS: Final = "/tmp/ray/session_latest/logs"
"""where Ray keeps what a driver writes to its standard output and error"""
READ: Final = f"""\
lines=$1 follow=$2; shift 2
while :; do
  for file; do [ -e "$file" ] && exec tail -n "$lines" $follow "$file"; done
  [ "$follow" ] || exit {Exit.NOT_FOUND.value}
  sleep 1
done"""
"""for a POSIX shell: the first existing one of the files, from its last lines on"""


EVENTS: Final = "events.jsonl"
"""the record of all steps, in the run's directory"""
RANKS: Final = "ranks"
OWN_FILES: Final = {
    "router": "logs/router.log",
    "rewards": REWARD_LOG,
    "tools": "logs/tools.log",
    "stacks": STACKS_LOG,
}
"""components with a separate log, besides engines"""
COMPONENTS: Final = ("driver", RANKS, *OWN_FILES)
OF_AN_ACTOR: Final = re.compile(rb"^(?:\x1b\[\d+m)?\(\w+ pid=\d+")
OF_A_RANK: Final = re.compile(rb"^(?:\x1b\[\d+m)?\(\w*Rank pid=\d+")


class NoSuchLogError(ValueError):
    """There is no such engine or attempt; the text names the nearest."""


@dataclass(frozen=True, slots=True)
class Log:
    """A log that was asked for."""

    what: str
    """for messages: `the log of attempt 2`"""
    file: str | None
    """in the run's directory, as the pods see it; None: the directory is unknown"""
    attempt: int | None = None
    """of the driver; None: it is an engine's"""
    cluster: str = ""
    """RayCluster on whose head Ray has it, too"""
    submission: str = ""
    """Ray's name for the driver"""
    component: str = ""
    """`driver` or `ranks`: only the lines of that; "": all lines"""

    def lines(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield a log without the lines of other components."""
        if not self.component:
            yield from chunks
            return
        for line in whole_lines(chunks):
            if OF_A_RANK.match(line) if self.component == RANKS else not OF_AN_ACTOR.match(line):
                yield line

    def files(self, head: Manifest) -> list[str]:
        """Return where to look on a head, the best place first."""
        on_head = head["metadata"].get("labels", {}).get(RAY_CLUSTER_LABEL) == self.cluster
        ray = [f"{RAY_LOGS}/job-driver-{self.submission}.log"] if self.attempt and on_head else []
        return [*ray, *([self.file] if self.file else [])]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which log of a job is asked for."""

    engine: str | None = None
    component: str | None = None
    attempt: int | None = None
    """of the driver; None: the newest"""


def wanted_log(job: Job, wanted: Wanted) -> Log:
    """Return the log that is asked for. Raises NoSuchLogError."""
    if wanted.engine:
        return engine_log(job, wanted.engine)
    if wanted.component:
        return component_log(job, wanted.component, wanted.attempt)
    return driver_log(job, wanted.attempt)


def driver_log(job: Job, attempt: int | None) -> Log:
    """Return the log of a start of the driver, of the newest that has begun if none is given."""
    known = [each for each in job.status.attempts if attempt in (None, each.number)]
    if not known:
        numbers = [each.number for each in job.status.attempts]
        if not numbers:
            raise NoSuchLogError(f"{job.key} has no driver yet: {job.explanation}")
        rest = f"; there are {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"; there is {numbers[0]}"
        raise NoSuchLogError(f"{job.key} has no attempt {attempt}{rest}")
    begun = [each for each in known if each.started is not None] or known
    chosen = begun[-1]
    return Log(
        what=f"the driver's log of attempt {chosen.number}",
        file=_in_directory(job, DRIVER_LOG.format(attempt=chosen.number)),
        attempt=chosen.number,
        cluster=chosen.cluster,
        submission=submission_id(job.name, job.uid, chosen.number),
    )


def engine_log(job: Job, engine: str) -> Log:
    """Return the log of an engine, all of its processes."""
    known = [each.name for each in job.status.engines.items] if job.status.engines else []
    if known and engine not in known:
        raise NoSuchLogError(f'{job.key} has no engine "{engine}"; nearest: {nearest(engine, known) or known[0]}')
    return Log(what=f"the log of {engine}", file=_in_directory(job, ENGINE_LOG.format(engine=engine)))


def component_log(job: Job, component: str, attempt: int | None) -> Log:
    """Return the log of one of COMPONENTS. Raises NoSuchLogError."""
    if component not in COMPONENTS:
        known = ", ".join(COMPONENTS)
        raise NoSuchLogError(f'no component is called "{component}"; there are {known}, and engines by --engine')
    log = driver_log(job, attempt)
    if component in OWN_FILES:
        name = OWN_FILES[component].format(attempt=log.attempt)
        return Log(what=f"the log of {component}", file=_in_directory(job, name))
    return replace(log, component=component)


def step_events(job: Job) -> Log:
    """Return the record of all steps of a job."""
    return Log(what="the record of its steps", file=_in_directory(job, EVENTS))


def journal(job: Job) -> Log:
    """Return the journal of a job's prompts, its newest file."""
    return Log(what="the journal", file=_in_directory(job, names.JOURNAL))


def full_journal(job: Job, until: int) -> Log:
    """Return the file of a job's journal that was full after this number of steps."""
    file = f"{names.FULL_JOURNALS}/{names.full_journal(until)}"
    return Log(what=f"the journal until step {until}", file=_in_directory(job, file))


def whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream, each when it is complete, and what remains at its end."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest


def read_command(files: Sequence[str], tail: int | None, follow: bool) -> list[str]:
    """Return the command that writes the first existing one of the files; it ends with 66 without any.

    `tail`: only this number of last lines; `follow`: wait for the file, and continue with what is written to it.
    """
    return ["sh", "-c", READ, "rljob-logs", "+1" if tail is None else str(tail), "-F" if follow else "", *files]


def without_pods(job: Job, log: Log) -> str:
    """Return where the log lies of a job that has no running head."""
    where = f"it is at {log.file} on the volume of the job" if log.file else ""
    if job.has_ended:
        freed = f"{job.key} has {str(job.status.phase).lower()} and its pods are deleted"
        return f"{freed}: {log.what} cannot be read from here; {where or 'it was deleted with them'}"
    lies = f"; {where}" if where else ""
    return f"{job.key} has no running head pod ({job.explanation}): {log.what} cannot be read now{lies}"


def last_lines(text: str, tail: int | None) -> str:
    """Return the last lines of a text, all of them if no number is given."""
    return text if tail is None else "".join(text.splitlines(keepends=True)[-tail:])


def has_ended(job: Job, log: Log) -> bool:
    """Return whether nothing more will be written."""
    if job.has_ended or log.attempt is None:
        return job.has_ended
    return any(each.number == log.attempt and each.ended is not None for each in job.status.attempts)


def _in_directory(job: Job, name: str) -> str | None:
    return f"{job.status.directory}/{name}" if job.status.directory else None
