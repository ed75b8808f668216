"""Where a run begins: at the checkpoint that its manifest asks for, or at step 0. Asked at every start of the driver.

    spec.checkpoint.resume, resumeStep ─┐
    who asked for this run ─────────────┼─► begin ─► Start
    what lies in its directory ─────────┘

`Fresh` and a named step are carried out once for each origin: one call of `rljob run`, or one RLJob object. Attempts
that follow a crash have the same origin and resume from what this run has saved itself. `origin.txt` says whose wish
was carried out last; it is written when everything is in its place, so a start that was killed on the way is repeated.

Nothing of a user's is deleted: what is not gone on from moves to `set-aside-N` below the run's directory.
"""

import logging
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rljob_api.control import Finding
from rljob_api.sections import Checkpoint as Wish
from rljob_api.sections import Resume
from rljob_trainer import private_files
from rljob_trainer.reporting import events
from rljob_trainer.rundir import journal, names, rollout_files
from rljob_trainer.rundir.atomic_files import write_atomically
from rljob_trainer.rundir.checkpoints import (
    DIRECTORY,
    TRACKER,
    CheckpointError,
    Found,
    checked,
    complete,
    free_name,
    name_of,
    newest,
    remove_drafts,
    set_aside,
    step_of,
)
from rljob_trainer.rundir.missing_path import contents
from rljob_trainer.rundir.retries import PATIENT, Patience

log = logging.getLogger(__name__)

ORIGIN = "origin.txt"
RECORDS = (journal.FILE_NAME, events.FILE_NAME)
"""what a run writes as it goes; going back to an earlier step cuts their ends off"""
RESULTS = (DIRECTORY, *RECORDS, journal.OLDER, rollout_files.DIRECTORY, "report.html", "tensorboard", "hf")
"""all that belongs to a run's steps; logs belong to its attempts"""


@dataclass(frozen=True, slots=True)
class Start:
    """Where this attempt begins."""

    found: Found | None = None
    """None: at step 0, with the weights of `model.checkpoint`"""
    damaged: tuple[Path, ...] = ()
    """where damaged checkpoints are kept, newest first like `found.damaged`"""
    aside: Path | None = None
    """where is what was there and is not gone on from"""

    @property
    def step(self) -> int:
        """Steps done."""
        return self.found.checkpoint.step if self.found else 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What should not be so: damaged checkpoints, newest first."""
        reasons = self.found.damaged if self.found else ()
        return tuple(damaged(why, path) for path, why in zip(self.damaged, reasons, strict=True))

    def __str__(self) -> str:
        beginning = f"resumes from {self.found.path.name}" if self.found else "starts at step 0"
        damaged = [f"damaged: {finding.evidence}" for finding in self.findings]
        aside = [f"the old files are in {self.aside.name}"] if self.aside else []
        return "; ".join([beginning, *damaged, *aside])


def damaged(why: str, kept: Path) -> Finding:
    """Return that a checkpoint is damaged, and where it is kept."""
    return Finding(
        name="DamagedCheckpoint",
        evidence=f"{why}; kept as {kept.name}",
        advice="check disk and file system: the checkpoint was intact when it was saved",
    )


def begin(directory: Path, wish: Wish, origin: str, patience: Patience = PATIENT) -> Start:
    """Put the run's directory in order, and return where the run begins.

    Raises CheckpointError when that is impossible; the text says what was looked for and what is there. Raises
    StorageError when the volume does not say what is there.
    """
    checkpoints = directory / DIRECTORY
    for place in (directory, checkpoints):
        patience(place, partial(private_files.remove_drafts, place))
    remove_drafts(checkpoints, patience)
    aside = None if origin == _last_origin(directory, patience) else _prepare(directory, wish, patience)
    found = newest(checkpoints, patience)
    if found is None and wish.resume is Resume.MUST:
        raise CheckpointError(_nothing_there(checkpoints))
    damaged = set_aside(checkpoints, found.checkpoint.step, patience) if found else ()
    patience(directory / ORIGIN, lambda: write_atomically(directory / ORIGIN, f"{origin}\n".encode()))
    return Start(found, damaged, aside)


def is_begun(directory: Path, origin: str, patience: Patience = PATIENT) -> bool:
    """Return whether an attempt of this origin has begun in the directory. Raises StorageError."""
    return origin == _last_origin(directory, patience)


def _last_origin(directory: Path, patience: Patience) -> str | None:
    path = directory / ORIGIN
    try:
        return patience(path, path.read_bytes).decode(errors="replace").removesuffix("\n")
    except FileNotFoundError:
        return None


def _prepare(directory: Path, wish: Wish, patience: Patience) -> Path | None:
    """Do what a wish asks for at the first attempt; return where things have gone, if any had to."""
    if wish.resume is Resume.FRESH:
        return _all_aside(directory)
    if wish.resume_step is not None:
        _check(directory / DIRECTORY, wish.resume_step, patience)
        return _later_aside(directory, wish.resume_step)
    return None


def _all_aside(directory: Path) -> Path | None:
    there = [directory / name for name in RESULTS if (directory / name).exists()]
    if not there:
        return None
    aside = _new_place(directory)
    for path in there:
        path.rename(aside / path.name)
    log.warning("action=set_aside reason=Fresh to=%s what=%s", aside, [path.name for path in there])
    return aside


def _later_aside(directory: Path, step: int) -> Path | None:
    """Move what was made after `step`, with copies of the records as they are."""
    rollouts = rollout_files.Dump(directory / rollout_files.DIRECTORY)
    later = [
        *(path for path in complete(directory / DIRECTORY) if step_of(path) > step),
        *(rollouts.path(made) for made in rollouts.steps() if made >= step),
    ]
    if not later:
        return None
    aside = _new_place(directory)
    for name in RECORDS:
        if (directory / name).exists():
            shutil.copyfile(directory / name, aside / name)
    if (directory / journal.OLDER).exists():
        shutil.copytree(directory / journal.OLDER, aside / journal.OLDER)
    for path in later:
        (aside / path.parent.name).mkdir(exist_ok=True)
        path.rename(aside / path.parent.name / path.name)
    write_atomically(directory / DIRECTORY / TRACKER, str(step).encode())
    log.warning("action=set_aside reason=ResumeStep to=%s what=%s", aside, [path.name for path in later])
    return aside


def _new_place(directory: Path) -> Path:
    aside = free_name(directory / names.SET_ASIDE)
    aside.mkdir()
    return aside


def _check(checkpoints: Path, step: int, patience: Patience) -> None:
    """Raise CheckpointError unless there is an undamaged checkpoint of this step."""
    there = {step_of(path): path for path in complete(checkpoints, patience)}
    try:
        if step in there:
            checked(there[step], patience)
            return
    except CheckpointError as error:
        others = sorted(there.keys() - {step})
        raise CheckpointError(f"spec.checkpoint.resumeStep {step}: {error}; {_steps(others)}") from error
    moved = sorted(checkpoints.parent.glob(f"{names.SET_ASIDE}*/{DIRECTORY}/{name_of(step)}"))
    hint = f"; {moved[-1]} was set aside: move it back to use it" if moved else ""
    wanted = checkpoints / name_of(step)
    raise CheckpointError(f"spec.checkpoint.resumeStep {step}: looked for {wanted}; {_steps(sorted(there))}{hint}")


def _steps(steps: list[int]) -> str:
    return f"checkpoints there are of steps {', '.join(map(str, steps))}" if steps else "there is no other checkpoint"


def _nothing_there(checkpoints: Path) -> str:
    return (
        f"spec.checkpoint.resume is MustResume: looked for a checkpoint {checkpoints}/iter_*; {contents(checkpoints)}"
    )
