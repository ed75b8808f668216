"""What the events of a run come to, as a record among them, so that a driver that starts again need not read them all.

    records ... summary, records of at most SUMMARY_EVERY steps and what was done since ─► progress, findings
                   ▲ the newest one

The steps of a window before it are read, too. Events without a summary that this version knows, or of another window,
are read from the first one on.
"""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from rljob_trainer.reporting.events import newest_first, read_events
from rljob_trainer.reporting.progress import ProgressHolder, ProgressState
from rljob_trainer.reporting.records import CheckpointRecord, Record, StepRecord, SummaryRecord
from rljob_trainer.reporting.watch import AnomalyMonitor, WatchState

SUMMARY_EVERY: Final = 100
"""steps between two summaries"""
MOST_READ: Final = 20 * SUMMARY_EVERY
"""records that are looked at for a summary"""
VERSION: Final = 1
_PROGRESS: TypeAdapter[ProgressState] = TypeAdapter(ProgressState)
_WATCH: TypeAdapter[WatchState] = TypeAdapter(WatchState)


def summary(progress: ProgressHolder, watching: AnomalyMonitor, time: float, step: int) -> SummaryRecord:
    """Return the record of what is known after a step."""
    known = {
        "version": VERSION,
        "progress": _PROGRESS.dump_python(progress.state, mode="json"),
        "watch": _WATCH.dump_python(watching.state, mode="json"),
    }
    return SummaryRecord(time=time, step=step, state=known)


def recall(path: Path, progress: ProgressHolder, watching: AnomalyMonitor) -> None:
    """Fill the two, which are new, with what a file says. Raises EventsError."""
    if not path.exists():
        return
    behind = _restored(path, progress, watching)
    for record in read_events(path) if behind is None else behind:
        progress.record(record)
        if isinstance(record, StepRecord):
            watching.after(record)  # its findings were reported at that time
        if isinstance(record, CheckpointRecord):
            watching.saved(record.step)


def _restored(path: Path, progress: ProgressHolder, watching: AnomalyMonitor) -> list[Record] | None:
    """Fill the two from the newest summary; return the records behind it. None: there is none that can be used."""
    behind: list[Record] = []
    records = (record for record, _, _ in newest_first(path))
    for record in islice(records, MOST_READ):
        if isinstance(record, SummaryRecord) and (states := _states(record.state, watching.limits.window)):
            of_progress, of_watch = states
            steps = (each for each in records if isinstance(each, StepRecord))
            progress.restore(of_progress)
            watching.restore(of_watch, [*islice(steps, of_watch.window + 1)][::-1])
            return behind[::-1]
        behind.append(record)
    return None


def _states(state: Mapping[str, Any], window: int) -> tuple[ProgressState, WatchState] | None:
    """Return what a summary holds; None: it is of another version, or of another window."""
    if state.get("version") != VERSION:
        return None
    try:
        known = _PROGRESS.validate_python(state.get("progress")), _WATCH.validate_python(state.get("watch"))
    except ValidationError:
        return None
    return known if known[1].window == window else None
