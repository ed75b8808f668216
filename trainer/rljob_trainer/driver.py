"""The driver: `python -m rljob_trainer.driver --manifest FILE --directory DIR --attempt N`.

Builds the parts, runs the loop, and ends with an exit code that says why (`rljob_api.exits`). Its supervisor decides
what follows: `rljob run` on one machine, the operator in a cluster.
"""

import argparse
import errno
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rljob_api import adjustments
from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_api.foreign_text import TokenlessFormatter
from rljob_api.reading.manifest import load
from rljob_api.sections import RLJob
from rljob_trainer import preflight
from rljob_trainer.assembly.build import build
from rljob_trainer.assembly.regrouping import OF_LOST_RANKS
from rljob_trainer.assembly.run import Run
from rljob_trainer.assembly.serving import LOCAL, Address
from rljob_trainer.loop import train
from rljob_trainer.private_files import AppendingHandler, private_directory
from rljob_trainer.processes.garbage import collect_rarely
from rljob_trainer.reporting.records import Record, StepRecord
from rljob_trainer.rundir.cores import NewCores
from rljob_trainer.rundir.fence import Fence, Name
from rljob_trainer.rundir.logs import AttemptLogs
from rljob_trainer.rundir.retries import PATIENT, causes, passes

log = logging.getLogger(__name__)

EXITS_OF_OTHERS: tuple[tuple[type[BaseException], Exit], ...] = (
    (MemoryError, Exit.OUT_OF_MEMORY),
    (TimeoutError, Exit.STALLED),
)
"""of exceptions that are not ours and so carry no exit code"""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def main(arguments: Sequence[str]) -> Exit:
    """Run the driver; return why it ended."""
    options = _parser().parse_args(arguments)
    code: Exit | None = None
    logs, cores = AttemptLogs(options.directory), NewCores(options.directory.resolve())
    steps = _Steps(logs)
    try:
        PATIENT(options.directory, lambda: private_directory(options.directory))
        _log_to(options.log)
        with ExitStack() as stack:
            manifest = PATIENT(options.manifest, options.manifest.read_text)
            job = with_adjustments(with_engines(load(manifest), options.engines), os.environ)
            PATIENT(options.directory, lambda: (options.directory / "logs").mkdir(parents=True, exist_ok=True))
            if options.preflight:
                preflight.require(job, options.directory)
            listen = replace(options.listen, metrics_port=options.metrics_port)
            fence = Fence(options.directory.resolve(), Name(options.origin, options.attempt))
            fence.claim()
            stack.enter_context(fence.at_work())
            run = build(job, fence, listen, os.environ, stack)
            run.foundation.report.also_to(steps)
            collect_rarely()
            signal.signal(signal.SIGTERM, lambda *_: run.orders.drain())
            code = _finish(run)
    except (Exception, SystemExit) as error:  # the top of the process: every end has a code and a line in the log
        log.exception("action=end reason=%s", type(error).__name__)
        # A failed shutdown does not change the exit code of a finished run.
        if code is None:
            if found := logs.known_failure():
                log.error("%s", found.line)
            return exit_of(error, steps.done)
    finally:
        cores.report()
    return code


class _Steps:
    """Marks in the attempt's logs where each step ends."""

    def __init__(self, logs: AttemptLogs) -> None:
        self._logs = logs
        self.done = 0
        """steps of the run"""

    def record(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self.done = record.step
            self._logs.step_finished()

    def close(self) -> None:
        pass


def with_engines(job: RLJob, engines: int | None) -> RLJob:
    """Return the job with another number of engines than its manifest has; None: with the manifest's."""
    if engines is None:
        return job
    rollout = job.spec.rollout.model_copy(update={"engines": engines})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"rollout": rollout})})


def with_adjustments(job: RLJob, environment: Mapping[str, str]) -> RLJob:
    """Return the job with what the supervisor changed after an attempt that ran out of memory."""
    values = adjustments.read(environment)
    if not values:
        return job
    log.warning("action=adjust %s, because an earlier attempt ran out of memory", adjustments.in_words(values))
    return job.model_copy(update={"spec": adjustments.adjusted(job.spec, values)})


def exit_of(error: BaseException, steps_done: int = 0) -> Exit:
    """Return the exit code that says what went wrong after `steps_done` steps: the error's own, except for one

    caused by an error of a file system that passes, or by a full one    AWAY: the file may be as it should be
    that is itself of a file system, of no connection                    AWAY: that file was read without retries
    of what users gave, when steps have been trained with it             FAILED: it was good for these steps
    """
    code = _code(error)
    if code is Exit.FAILED and passes(error) and not isinstance(error, ConnectionError):
        return Exit.AWAY
    if code not in (Exit.BAD_INPUT, Exit.BAD_MANIFEST):
        return code
    if any(isinstance(each, OSError) and (passes(each) or each.errno in FULL) for each in causes(error)):
        return Exit.AWAY
    proven = isinstance(error, RunError) and error.proven_by_steps
    return Exit.FAILED if steps_done and proven else code


def _code(error: BaseException) -> Exit:
    if isinstance(error, RunError):
        return error.exit
    return next((code for kind, code in EXITS_OF_OTHERS if isinstance(error, kind)), Exit.FAILED)


def _log_to(file: Path | None) -> None:
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(AppendingHandler(file))
    line = "%(asctime)s %(levelname)s %(name)s %(message)s"
    for handler in handlers:
        handler.setFormatter(TokenlessFormatter(line))
    logging.basicConfig(level=logging.INFO, handlers=handlers)


def _finish(run: Run) -> Exit:
    while True:
        try:
            finished = train(run.parts, run.first, run.steps)
        except OF_LOST_RANKS as error:
            run = _again(run, error)
        except Exception as error:
            run.fail(error)
            raise
        else:
            run.finish(finished)
            return Exit.OK if finished else Exit.PREEMPTED


def _again(run: Run, error: Exception) -> Run:
    """Return the run with new ranks of the learner. Raises the error, reported, if they do not help."""
    try:
        return run.again(error)
    except Exception as last:
        run.fail(last)
        raise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rljob_trainer.driver", description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True, help="the RLJob")
    parser.add_argument("--directory", type=Path, required=True, help="the run's directory")
    parser.add_argument("--attempt", type=int, default=1, help="counts the starts of this run")
    parser.add_argument(
        "--origin",
        default="",
        help="a word that identifies the run; an attempt with the same one resumes from the attempt before it",
    )
    parser.add_argument("--log", type=Path, help="a file that gets the log besides: one that outlives the pod")
    parser.add_argument(
        "--preflight", action="store_true", help="look at the model's files, the questions and this machine first"
    )
    parser.add_argument(
        "--engines", type=int, metavar="N", help="instead of rollout.engines; a mounted manifest changes late"
    )
    parser.add_argument(
        "--listen", type=_address, default=LOCAL, metavar="HOST:PORT", help="of the control protocol; port 0: any"
    )
    parser.add_argument(
        "--metrics-port", type=int, default=0, help="of the Prometheus endpoint, if the manifest names none; 0: any"
    )
    return parser


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return Address(host, int(port))


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    # Everything is closed; to take down an interpreter with torch, Ray and transformers in it takes seconds.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended)
