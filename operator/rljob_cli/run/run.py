"""`rljob run MANIFEST`: the run that a manifest describes, on this machine, without a cluster.

    rljob run ─► supervisor ─► driver ─► Ray, learners, engines, router
         └─► guard: cleans up if all of the above is killed

Exit codes are those of `rljob_api.exits`.

Running the manifest of an interrupted run again continues from its newest checkpoint.
"""

import logging
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import yaml

from rljob_api.adjustments import VARIABLE, Adjustments, written
from rljob_api.control import TOKEN_VARIABLE
from rljob_api.credentials import HIDDEN
from rljob_api.errors import ManifestError
from rljob_api.exits import Exit
from rljob_api.reading.document import document
from rljob_api.reading.manifest import load
from rljob_api.rules.scope import left_out, only_in_a_cluster
from rljob_api.sections import Spec
from rljob_cli.manifest.validate import read
from rljob_cli.run.driver import Driver, Event
from rljob_cli.run.rundir import RunDirectory, RunLockedError, locked, rundir
from rljob_cli.run.summary import recorded, summary, warnings
from rljob_cli.run.supervisor import TIMING, Display, RunResult, Supervisor, Timing
from rljob_trainer.private_files import AppendingHandler, appended, write_whole
from rljob_trainer.processes import leftovers
from rljob_trainer.processes.guard import guard_command
from rljob_trainer.rundir.logs import AttemptLogs

log = logging.getLogger(__name__)

DRIVER = (sys.executable, "-m", "rljob_trainer.driver")

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"

WITH_STACKS = {"PYTHONFAULTHANDLER": "1"}
"""a driver that is killed as stalled writes the stacks of its threads"""

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(manifest: Path, display: Display, driver: Sequence[str] = DRIVER, timing: Timing = TIMING) -> int:
    """Run the manifest to its end, and return the exit code.

    `driver` is the command that `--manifest FILE --directory DIR --attempt N --origin ID` is added to. Call it in the
    main thread: the driver lives as long as the thread that starts it, and signals come there.
    """
    try:
        text = read(manifest)
        job = load(text)
    except ManifestError as error:
        for problem in error.problems:
            display.note(str(problem))
        return Exit.BAD_MANIFEST
    directory = rundir(job)
    # Into a file: lines on the terminal would break the display.
    logging.basicConfig(handlers=[AppendingHandler(directory.supervisor_log)], level=logging.INFO, format=LOG_FORMAT)
    try:
        with locked(directory) as lock:
            if (other := job_before(directory)) not in (None, job.metadata.name):
                display.note(
                    f"{directory.path} has files of job {other}: this one resumes from its checkpoints, if any"
                )
            write_whole(directory.manifest, kept(text, job.spec).encode())
            for field in only_in_a_cluster(job.spec):
                display.note(f"{field} applies to a cluster only; it has no effect on one machine")
            for name in job.spec.runtime.env.keys() - job.spec.runtime.texts.keys():
                display.note(f"spec.runtime.env.{name} has no value; on one machine it comes from the shell")
            for field in left_out(job.spec):
                display.note(f"{field} has no effect with {job.spec.debug.mode}")
            run = _Run(directory, driver, job.spec.runtime.texts, display, secrets.token_hex(8))
            return run.to_its_end(job.spec, lock, timing)
    except RunLockedError as error:
        display.note(str(error))
        return Exit.IN_USE


def job_before(directory: RunDirectory) -> str | None:
    """Return the name of the job whose manifest a run's directory has; None: there is none that can be read."""
    try:
        return load(read(directory.manifest)).metadata.name
    except ManifestError:
        return None


def kept(text: str, spec: Spec) -> str:
    """Return the manifest as its run directory keeps it: without the values of environment variables."""
    if not spec.runtime.texts:
        return text
    content = document(text)
    env = content["spec"]["runtime"]["env"]
    content["spec"]["runtime"]["env"] = {name: HIDDEN if isinstance(each, str) else each for name, each in env.items()}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110)


@dataclass(frozen=True)
class _Run:
    """A run whose directory is ours."""

    directory: RunDirectory
    driver: Sequence[str]
    env: Mapping[str, str]
    display: Display
    origin: str
    """new for each call of `rljob run`, so that the driver starts afresh once and not at every restart"""

    @property
    def id(self) -> str:
        return leftovers.run_id(self.directory.path)

    def to_its_end(self, spec: Spec, lock: int, timing: Timing) -> int:
        began = time.monotonic()
        self._clean("an earlier run that was killed")
        with self._guarded(lock):
            supervisor = Supervisor(
                start=self._start,
                clean=lambda: self._clean("the attempt"),
                spec=spec,
                display=self.display,
                first_attempt=self.directory.next_attempt(),
                timing=timing,
            )
            try:
                with _interrupts_go_to(supervisor.interrupt):
                    outcome = supervisor.run()
            finally:
                # Also when we fail: the driver must not run without a supervisor.
                leftovers.clean(self.id, self.directory.path)
        self._show(outcome, time.monotonic() - began)
        return outcome.exit_code

    def _start(self, attempt: int, less: Adjustments, events: SimpleQueue[Event]) -> Driver:
        leftovers.create_scratch(self.id)
        token = secrets.token_urlsafe(32)
        manifest, directory = str(self.directory.manifest), str(self.directory.path)
        arguments = ["--manifest", manifest, "--directory", directory, "--attempt", str(attempt)]
        arguments += ["--origin", self.origin]
        return Driver(
            command=[*self.driver, *arguments],
            environment={
                **self.env,
                **leftovers.environment(self.id),
                TOKEN_VARIABLE: token,
                VARIABLE: written(less),
                **WITH_STACKS,
            },
            log=self.directory.log(attempt),
            address=self.directory.address,
            token=token,
            events=events,
            logs=AttemptLogs(self.directory.path),
        )

    def _clean(self, whose: str) -> None:
        cleaned = leftovers.clean(self.id, self.directory.path)
        if cleaned.processes:
            self.display.note(f"ended {len(cleaned.processes)} processes that {whose} had left")

    @contextmanager
    def _guarded(self, lock: int) -> Iterator[None]:
        with appended(self.directory.path / "logs" / "guard.log") as output:
            guard = subprocess.Popen(
                guard_command(self.id, self.directory.path),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[lock],
            )
        try:
            yield
        finally:
            guard.kill()
            guard.wait()

    def _show(self, outcome: RunResult, seconds: float) -> None:
        if outcome.exit_code != Exit.OK:
            last_log = self.directory.log(self.directory.next_attempt() - 1)
            self.display.note(f"{outcome.reason}; log: {last_log}")
        records = recorded(self.directory.events)
        for warning in warnings(records):
            self.display.note(warning)
        self.display.note(summary(records, seconds, self.directory.report, outcome.exit_code))


@contextmanager
def _interrupts_go_to(handler: Callable[[int], None]) -> Iterator[None]:
    """Call `handler` for signals that ask us to end, except those that our parent process ignores (nohup)."""
    previous = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    ours = [number for number in ENDING_SIGNALS if previous[number] is not signal.SIG_IGN]
    for number in ours:
        signal.signal(number, lambda received, _: handler(received))
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, previous[number])
