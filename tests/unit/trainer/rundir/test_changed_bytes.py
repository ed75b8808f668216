"""A changed byte of a file that a run reads back from its directory: it is refused by name, ignored, or harmless.

Kernels are in `processes/test_kernel_archive.py`, pickles in `learners/rank/checkpoint/test_safe_reading.py`.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.sections import Checkpoint as Wish
from rljob_trainer.assembly.downloads import FILE_NAME as REVISIONS
from rljob_trainer.assembly.downloads import recorded_revisions
from rljob_trainer.data.hub import HubError
from rljob_trainer.reporting.events import EventLog, EventsError, last_step, read_events
from rljob_trainer.reporting.records import CheckpointRecord, EndRecord
from rljob_trainer.rundir.checkpoints import CheckpointError
from rljob_trainer.rundir.fence import FILE_NAME, Fence, FencedError, Name
from rljob_trainer.rundir.journal import Journal, JournalError
from rljob_trainer.rundir.resume import ORIGIN, begin
from rljob_trainer.rundir.rollout_files import Dump, DumpError
from support.trainer.saved_run import MADE, saved_run

NAMED = (CheckpointError, DumpError, EventsError, FencedError, HubError, JournalError)
MINE = Name("a", 3)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def written(run: Path) -> None:
    """Write all that a run leaves."""
    saved_run(run, steps=4, interval=2)
    log = EventLog(run / "events.jsonl")
    log.record(CheckpointRecord(time=1.0, step=2, path="checkpoints/iter_0000002"))
    log.record(EndRecord(time=2.0, step=4, outcome="finished"))
    log.close()
    Fence(run, MINE).claim()
    begin(run, Wish(), "a")
    (run / REVISIONS).write_text(f'{{"hf://org/tiny": "{COMMIT}"}}')


def fenced(run: Path) -> None:
    Fence(run, MINE).claim()
    Fence(run, MINE).check()


def checked(run: Path) -> None:
    Fence(run, MINE).check()


def replayed(run: Path) -> None:
    dump = Dump(run / "rollouts")
    for step in dump.steps():
        dump.read(step, MADE)


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "journal": ("journal.jsonl", lambda run: Journal(run / "journal.jsonl").close()),
    "events": ("events.jsonl", lambda run: (list(read_events(run / "events.jsonl")), last_step(run / "events.jsonl"))),
    "driver, at the start": (FILE_NAME, fenced),
    "driver, before a write": (FILE_NAME, checked),
    "origin": (ORIGIN, lambda run: begin(run, Wish(), "a")),
    "revisions": (REVISIONS, recorded_revisions),
    "rollouts": ("rollouts/*", replayed),
    "a checkpoint": ("checkpoints/iter_0000004/*", lambda run: begin(run, Wish(), "a")),
    "the tracker": ("checkpoints/latest*", lambda run: begin(run, Wish(), "a")),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    written(run)
    return run


@pytest.mark.parametrize(("pattern", "read"), READERS.values(), ids=READERS)
@given(where=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), which=st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_a_changed_byte_ends_a_run_with_a_name_or_does_nothing(
    whole: Path, pattern: str, read: Callable[[Path], object], where: float, byte: int, which: int
) -> None:
    with TemporaryDirectory() as place:
        run = shutil.copytree(whole, Path(place) / "run")
        files = sorted(path for path in run.glob(pattern) if path.is_file())
        file = files[which % len(files)]
        content = bytearray(file.read_bytes())
        content[int(where * len(content))] = byte
        file.write_bytes(content)
        try:
            read(run)
        except NAMED as error:
            assert str(error)
