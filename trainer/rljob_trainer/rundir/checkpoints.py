"""Checkpoints on disk: written beside their place, verified, moved there in one rename, counted, thinned out.

    checkpoints/
      iter_0000010/            Megatron's distributed checkpoint, and rljob.json: what it is, and digests of the files
      latest_checkpointed_iteration.txt

A directory called `iter_*` is complete: an interrupted save leaves only `saving-*`, and an interrupted deletion
`removing-*`, which the next save removes. What cannot be removed is left for later. The learner writes the tensors;
this module knows files only.

Only missing files and other bytes are damage. An error of the volume says nothing of what lies on it: it is waited for
(`retries.py`), and raises StorageError in the end.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from itertools import chain, count
from pathlib import Path
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


@dataclass(frozen=True, slots=True)
class Found:
    """The checkpoint to resume from."""

    path: Path
    checkpoint: Checkpoint
    damaged: tuple[str, ...] = ()
    """what is wrong with newer ones, which were passed over"""


class Saver(Protocol):
    """What writes the tensors: a `LearnerGroup`, from a room above. Tests have a fake."""

    def save(self, directory: Path) -> None:
        """Write all ranks' state into the directory."""


class Position(Protocol):
    """Where the data continues, as a `PromptStream` knows it, from a room above. Tests have a fake."""

    fingerprint: str

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and offset of the next prompt."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run."""

    directory: Path
    keep: int
    layout: str
    model: str
    precision: str
    learner: Saver
    stream: Position
    journal: Journal
    saved: Callable[[int, Path], None]
    """is called with every complete checkpoint"""
    may_write: Callable[[], None]
    """raises if this process must not change the directory"""
    patience: Patience = PATIENT

    def save(self, step: int) -> Path:
        """Save the state after `step` steps; return its directory, complete and verified. Raises StorageError."""
        target, tracker = self.directory / name_of(step), self.directory / TRACKER
        self._write(step, target)
        self.journal.committed(step, target.name)
        self.patience(tracker, lambda: write_atomically(tracker, str(step).encode()))
        self.saved(step, target)
        log.info("action=save checkpoint=%s", target)
        for old in complete(self.directory, self.patience)[self.keep :]:
            _remove(old, self.patience)
        return target

    def _write(self, step: int, target: Path) -> None:
        self.may_write()
        remove_drafts(self.directory, self.patience)
        draft = free_name(self.directory / f"saving-{target.name}")  # an old one may be there still
        self.patience(draft, lambda: draft.mkdir(parents=True, exist_ok=True))
        self.learner.save(draft)
        digests = digests_of(draft, patience=self.patience)
        checkpoint = Checkpoint(
            step=step,
            prompts=self.stream.position,
            data_fingerprint=self.stream.fingerprint,
            layout=self.layout,
            model=self.model,
            precision=self.precision,
            files=digests,
        )
        manifest = draft / MANIFEST
        self.patience(manifest, lambda: write_atomically(manifest, sealed(checkpoint)))
        self.may_write()  # saving takes its time
        self.patience(target, lambda: _rename(draft, target))
        self.patience(target, lambda: sync_directory(self.directory))


def newest(directory: Path, patience: Patience = PATIENT) -> Found | None:
    """Return the newest undamaged checkpoint, or None when there never was one.

    Raises CheckpointError when there are checkpoints and all are damaged: that is not a fresh start. Raises
    StorageError where the volume does not let one be read, which is not damage.
    """
    damaged: list[str] = []
    for path in complete(directory, patience):
        try:
            return Found(path, verified(path, patience), tuple(damaged))
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


def verified(path: Path, patience: Patience = PATIENT) -> Checkpoint:
    """Return what the checkpoint says of itself.

    Raises CheckpointError if a file is missing or changed, and StorageError if that cannot be known.
    """
    checkpoint = described(path, patience)
    try:
        found = digests_of(path, patience=patience)
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


def digests_of(directory: Path, chunk_bytes: int = CHUNK_BYTES, patience: Patience = PATIENT) -> dict[str, str]:
    """Return the digest of each file but the manifest, flushed to the disk. Files are read in chunks.

    Raises OSError for a file that is not there, and StorageError.
    """
    names = sorted(patience(directory, partial(_files, directory)))
    with ThreadPoolExecutor() as pool:
        digests = pool.map(lambda name: _digest(directory / name, chunk_bytes, patience), names)
        return dict(zip(names, digests, strict=True))


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
