"""Checkpoints on disk: written beside their place, moved there in one rename, counted, thinned out.

    checkpoints/
      iter_0000010/            Megatron's distributed checkpoint, and rljob.json: what it is, and digests of the files
      latest_checkpointed_iteration.txt

    begin   the learner copies its state to the host; training continues
    write   a thread has the ranks write their copies, and moves the checkpoint to its place, beside the next steps
    finish  it is reported; before the next one begins, and before a run ends

A directory called `iter_*` is complete: an interrupted save leaves only `saving-*`, and an interrupted deletion
`removing-*`, which the next save removes. What cannot be removed is left for later. The learner writes the tensors;
this module knows files only.

At a start the large files of ranks are looked for by their size alone. Ranks sum up what they read of them
(`learners/rank/checkpoint`): nothing is read twice.

Only missing files and other bytes are damage. An error of the volume says nothing of what lies on it: it is waited for
(`retries.py`), and raises StorageError in the end.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader
from itertools import chain, count
from pathlib import Path
from threading import Thread
from typing import Protocol

import xxhash
from pydantic import BaseModel, ConfigDict, ValidationError

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_trainer.reporting.losses import Cause
from rljob_trainer.rundir.atomic_files import sync_directory, write_atomically
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.rundir.names import CHECKPOINT, CHECKPOINT_MANIFEST, CHECKPOINTS, step_in
from rljob_trainer.rundir.retries import PATIENT, Patience

log = logging.getLogger(__name__)

MANIFEST = CHECKPOINT_MANIFEST
TRACKER = "latest_checkpointed_iteration.txt"
DIGEST = "digest"
"""field of the manifest: XXH3 of all others"""
CHUNK_BYTES = 16 * 2**20
SAMPLE_BYTES = 2**20
OF_RANKS = ".distcp"
"""ends the names of the files that ranks sum up themselves, while they read"""
LOOK_S = 1.0
"""between two signs of life while a checkpoint is waited for [s]"""
NAME = CHECKPOINT
DIRECTORY = CHECKPOINTS
"""below a run's directory"""
DOOMED = ("saving-", "removing-")
"""beginnings of names that stand for no checkpoint"""
BEGIN_ANEW = "spec.checkpoint.resume: Fresh keeps what is there and begins anew"


class CheckpointError(RunError, RuntimeError):
    """A checkpoint cannot be written or read; the text names it and says why."""

    exit = Exit.BAD_INPUT


class Checkpoint(BaseModel):
    """What a checkpoint says of itself (`rljob.json`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    """steps done"""
    prompts: tuple[int, int]
    """where the stream of prompts continues: epoch and offset"""
    data_fingerprint: str
    """of the rendered training questions; a resume on others is refused"""
    layout: str
    """parallel sizes that wrote it"""
    model: str
    """fingerprint of the model that training began with"""
    precision: str
    """of the weights"""
    files: dict[str, str]
    """XXH3 (128 bits) of each file: it finds damage, and does not stop an attacker"""
    sizes: dict[str, int] = {}
    """of each file [bytes]; older versions did not note them"""


@dataclass(frozen=True, slots=True)
class Found:
    """The checkpoint to resume from."""

    path: Path
    checkpoint: Checkpoint
    damaged: tuple[str, ...] = ()
    """what is wrong with newer ones, which were passed over"""


class Saver(Protocol):
    """What writes the tensors: a `LearnerGroup`, from a room above. Tests have a fake."""

    def stage(self, directory: Path) -> None:
        """Copy all ranks' state, to be written into the directory."""

    def write(self) -> Mapping[str, str]:
        """Write what was copied; return the digests of the ranks' files."""


class Position(Protocol):
    """Where the data continues, as a `PromptStream` knows it, from a room above. Tests have a fake."""

    fingerprint: str

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and offset of the next prompt."""


@dataclass(frozen=True, slots=True)
class Writing:
    """A checkpoint that is being written."""

    step: int
    target: Path
    began: float
    """on the clock of `Checkpoints` [s]"""
    ended: "Future[None]"


def in_thread(work: Callable[[], None]) -> "Future[None]":
    """Do a work in a thread that a process which ends does not wait for."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
            future.set_result(None)
        except BaseException as error:  # noqa: BLE001 - who waits for the future gets it
            future.set_exception(error)

    Thread(target=run, name="checkpoint", daemon=True).start()
    return future


@dataclass
class Checkpoints:
    """The checkpoints of one run. Methods are of the main thread; one checkpoint is written at a time."""

    directory: Path
    keep: int
    layout: str
    model: str
    precision: str
    learner: Saver
    stream: Position
    journal: Journal
    copied: Callable[[int], None]
    """is called with a step whose state is copied"""
    saved: Callable[[int, Path, float], None]
    """is called with every complete checkpoint, and how long it took [s]"""
    may_write: Callable[[], None]
    """raises if this process must not change the directory"""
    patience: Patience = PATIENT
    clock: Callable[[], float] = time.monotonic
    uses: Callable[[Path], bool] = lambda _: False
    """whether an old checkpoint must stay for now, for it is being uploaded"""
    beside: Callable[[Callable[[], None]], "Future[None]"] = in_thread
    """does a work beside the caller's"""
    _writing: Writing | None = None

    def begin(self, step: int) -> None:
        """Copy the state after `step` steps; it is written beside the steps that follow.

        Waits for the checkpoint before it, and raises what that raised, and StorageError.
        """
        self.finish()
        began = self.clock()
        target = self.directory / name_of(step)
        self.may_write()
        remove_drafts(self.directory, self.patience)
        draft = free_name(self.directory / f"saving-{target.name}")  # an old one may be there still
        self.patience(draft, lambda: draft.mkdir(parents=True, exist_ok=True))
        self.learner.stage(draft)
        checkpoint = Checkpoint(
            step=step,
            prompts=self.stream.position,
            data_fingerprint=self.stream.fingerprint,
            layout=self.layout,
            model=self.model,
            precision=self.precision,
            files={},
        )
        # Here, and not when it is complete: the place of the line must not depend on how fast a volume is.
        self.journal.committed(step, target.name)
        self.copied(step)
        self._writing = Writing(step, target, began, self.beside(partial(self._write, checkpoint, draft, target)))

    def check(self) -> None:
        """Report a checkpoint that is complete meanwhile; raise what its writing raised."""
        if self._writing is not None and self._writing.ended.done():
            self.finish()

    def finish(self) -> None:
        """Return when the checkpoint that is being written, if any, is complete and reported; raise what it raised."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        while not writing.ended.done():  # it ends by itself: ranks that write nothing are given up
            self.patience.alive()
            wait([writing.ended], LOOK_S)
        writing.ended.result()
        log.info("action=save checkpoint=%s", writing.target)
        self.saved(writing.step, writing.target, self.clock() - writing.began)

    def settle(self) -> None:
        """Return when nothing is written any more, also after an error: the ranks are gone, or about to go."""
        try:
            self.finish()
        except (RunError, OSError, MemoryError) as error:
            log.warning("action=save outcome=given_up reason=%r", error)

    def save(self, step: int) -> Path:
        """Save the state after `step` steps; return its directory, complete. Raises StorageError."""
        self.begin(step)
        self.finish()
        return self.directory / name_of(step)

    def _write(self, checkpoint: Checkpoint, draft: Path, target: Path) -> None:
        patience = replace(self.patience, alive=_nothing)  # a sign of life is the main thread's
        digests = {**self.learner.write()}
        names = patience(draft, partial(_files, draft))
        digests |= digests_of(draft, [name for name in names if name not in digests], patience=patience)
        sizes = {name: patience(draft / name, (draft / name).stat).st_size for name in names}
        manifest, tracker = draft / MANIFEST, self.directory / TRACKER
        complete_one = checkpoint.model_copy(update={"files": digests, "sizes": sizes})
        patience(manifest, lambda: write_atomically(manifest, sealed(complete_one)))
        self.may_write()  # writing takes its time
        patience(target, lambda: _rename(draft, target))
        patience(target, lambda: sync_directory(self.directory))
        patience(tracker, lambda: write_atomically(tracker, str(checkpoint.step).encode()))
        for old in complete(self.directory, patience)[self.keep :]:
            if not self.uses(old):
                _remove(old, patience)


def _nothing() -> None:
    """Do not report that a volume is waited for."""


def newest(directory: Path, patience: Patience = PATIENT) -> Found | None:
    """Return the newest undamaged checkpoint, or None when there never was one.

    Raises CheckpointError when there are checkpoints and all are damaged: that is not a fresh start. Raises
    StorageError where the volume does not let one be read, which is not damage.
    """
    damaged: list[str] = []
    for path in complete(directory, patience):
        try:
            return Found(path, checked(path, patience), tuple(damaged))
        except CheckpointError as error:
            log.error("action=skip checkpoint=%s reason=Damaged %s", path, error)
            damaged.append(str(error))
    if damaged:
        raise CheckpointError(f"no checkpoint can be read: {'; '.join(damaged)}; {BEGIN_ANEW}")
    return None


def remove_drafts(directory: Path, patience: Patience = PATIENT) -> None:
    """Remove what an interrupted save or deletion has left, if that is possible now: it may be what fills the disk."""
    for leftover in patience(directory, lambda: [*directory.glob("saving-*"), *directory.glob("removing-*")]):
        _remove(leftover, patience)


def _remove(path: Path, patience: Patience) -> None:
    """Delete a directory; one that stays, for a process still has it open, is tried again at the next save."""
    doomed = path if path.name.startswith(DOOMED) else free_name(path.with_name(f"removing-{path.name}"))
    try:
        if doomed != path:
            path.rename(doomed)  # a half-deleted directory must not look like a checkpoint
        shutil.rmtree(doomed)
    except OSError as error:
        log.warning("action=remove directory=%s outcome=later reason=%s", path, error)
        if patience.losses is not None:
            patience.losses.note(Cause.CLEANING)


def _rename(draft: Path, target: Path) -> None:
    """Rename a draft. A rename whose answer was lost has been done already."""
    if draft.exists() or not target.exists():
        draft.rename(target)


def set_aside(directory: Path, step: int, patience: Patience = PATIENT) -> tuple[Path, ...]:
    """Rename what comes after `step` to `damaged-*`: a run that resumes from an older checkpoint makes it again.

    Return the new names. Nothing is thrown away: one that was damaged twice gets a number.
    """
    moved = []
    for path in complete(directory, patience):
        if step_of(path) > step:
            target = free_name(path.with_name(f"damaged-{path.name}"))
            patience(path, partial(_rename, path, target))
            log.warning("action=set_aside checkpoint=%s to=%s", path, target)
            moved.append(target)
    return tuple(moved)


def free_name(path: Path) -> Path:
    """Return the path, with a number behind it if there is something of its name."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(2))
    return next(name for name in chain([path], numbered) if not name.exists())


def checked(path: Path, patience: Patience = PATIENT) -> Checkpoint:
    """Return what the checkpoint says of itself, if all of it seems to be there.

    Files of ranks have their sizes; all others, and those of older versions, are as they were written. Raises
    CheckpointError if a file is missing or changed, and StorageError if that cannot be known.
    """
    checkpoint = described(path, patience)
    try:
        names = patience(path, partial(_files, path))
        small = [name for name in names if not (name.endswith(OF_RANKS) and name in checkpoint.sizes)]
        found = digests_of(path, small, patience=patience)
        for name in sorted({*names} - {*small}):
            size = patience(path / name, (path / name).stat).st_size
            found[name] = checkpoint.files[name] if size == checkpoint.sizes[name] else f"{size} bytes"
    except OSError as error:  # it went while it was looked at, or the file system itself found damage
        raise CheckpointError(f"{path}: {error}") from error
    if damage := damage_of(path, checkpoint, found):
        raise CheckpointError(f"{path}: {damage}")
    return checkpoint


def described(path: Path, patience: Patience = PATIENT) -> Checkpoint:
    """Return what the checkpoint says of itself.

    Raises CheckpointError if that is not as it was written, and StorageError if it cannot be read.
    """
    try:
        checkpoint = opened(patience(path / MANIFEST, (path / MANIFEST).read_text))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {MANIFEST} {_unreadable(error)}") from error
    return checkpoint


def damage_of(path: Path, checkpoint: Checkpoint, found: Mapping[str, str]) -> str | None:
    """Return which files are missing or changed, by the digests of those that are there; None: none."""
    if NAME.fullmatch(path.name) and checkpoint.step != step_of(path):
        return f"{MANIFEST} is that of step {checkpoint.step}"
    missing = sorted(checkpoint.files.keys() - found.keys())
    changed = sorted(name for name in checkpoint.files.keys() & found.keys() if found[name] != checkpoint.files[name])
    damage = [f"{what} files {names}" for what, names in (("missing", missing), ("changed", changed)) if names]
    return ", ".join(damage) or None


def sealed(checkpoint: Checkpoint) -> bytes:
    """Return the content of `rljob.json`: what the checkpoint says of itself, and a digest of that."""
    fields = checkpoint.model_dump(mode="json")
    return json.dumps(fields | {DIGEST: _digest_of(fields)}, indent=1).encode()


def opened(content: str) -> Checkpoint:
    """Return what `rljob.json` says; raise ValueError if it is not as it was written.

    A file of before there was a digest is believed.
    """
    fields = json.loads(content)
    digest = fields.pop(DIGEST, None) if isinstance(fields, dict) else None
    if digest not in (None, _digest_of(fields)):
        raise ValueError("it is not as it was written")
    return Checkpoint.model_validate(fields)


def _digest_of(fields: object) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(fields, sort_keys=True).encode())


def _unreadable(error: Exception) -> str:
    match error:
        case FileNotFoundError():
            return "is not there"
        case ValidationError():
            first = error.errors()[0]
            return f"cannot be read: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        case _:
            return f"cannot be read: {error}"


def complete(directory: Path, patience: Patience = PATIENT) -> list[Path]:
    """Return the complete checkpoints below a directory, newest first. Directories with other names are ignored.

    Raises StorageError: a directory that cannot be read is not an empty one.
    """
    return sorted(patience(directory, partial(_named, directory)), key=step_of, reverse=True)


def _named(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if NAME.fullmatch(path.name) and path.is_dir()]
    except FileNotFoundError:
        return []


def step_of(path: Path) -> int:
    """Return the step that a checkpoint's name says."""
    return step_in(path.name)


def model_fingerprint(directory: Path) -> str:
    """Return a fingerprint of a Hugging Face checkpoint: of its configuration, and a sample of its weights."""
    digest = xxhash.xxh3_128((directory / "config.json").read_bytes())
    for path in sorted(directory.glob("*.safetensors")):
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(size // 2)
            digest.update(f"{path.name} {size}".encode() + file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def name_of(step: int) -> str:
    """Return the directory name that Megatron gives to this iteration."""
    return f"iter_{step:07d}"


def digests_of(
    directory: Path, names: Iterable[str] | None = None, chunk_bytes: int = CHUNK_BYTES, patience: Patience = PATIENT
) -> dict[str, str]:
    """Return the digest of each file but the manifest, or of those named, flushed to the disk.

    Files are read in chunks. Raises OSError for a file that is not there, and StorageError.
    """
    read = sorted(patience(directory, partial(_files, directory)) if names is None else names)
    with ThreadPoolExecutor() as pool:
        digests = pool.map(lambda name: _digest(directory / name, chunk_bytes, patience), read)
        return dict(zip(read, digests, strict=True))


def _files(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.is_file() and path.name != MANIFEST]


def _digest(path: Path, chunk_bytes: int, patience: Patience) -> str:
    digest = xxhash.xxh3_128()
    with closing(_Chunks(path, chunk_bytes)) as chunks:
        while chunk := patience(path, chunks.next):
            digest.update(chunk)
    return digest.hexdigest()


@dataclass
class _Chunks:
    """A file in pieces, each of which may be asked for again after an error: of terabytes, none is read twice."""

    path: Path
    chunk_bytes: int
    place: int = 0
    file: BufferedReader | None = None

    def next(self) -> bytes:
        """Return the next piece; after the last one, nothing. Raises OSError, and stays where it was."""
        try:
            if self.file is None:
                self.file = self.path.open("rb")
                os.fsync(self.file.fileno())
                self.file.seek(self.place)
            chunk = self.file.read(self.chunk_bytes)
        except OSError:
            self.close()  # a stale handle stays stale
            raise
        self.place += len(chunk)
        return chunk

    def close(self) -> None:
        """Close the file, if it is open."""
        file, self.file = self.file, None
        if file is not None:
            with suppress(OSError):
                file.close()
