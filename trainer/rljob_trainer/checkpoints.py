"""Checkpoints on disk: written beside their place, verified, moved there in one rename, counted, thinned out.

    checkpoints/
      iter_0000010/            Megatron's distributed checkpoint, and rljob.json: what it is, and digests of the files
      latest_checkpointed_iteration.txt

A directory called `iter_*` is complete: an interrupted save leaves only `saving-*`, which the next save removes.
The learner writes the tensors; this module knows files only.
"""

import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import xxhash
from pydantic import BaseModel, ConfigDict, ValidationError

from rljob_trainer.data.journal import Journal

log = logging.getLogger(__name__)

MANIFEST = "rljob.json"
TRACKER = "latest_checkpointed_iteration.txt"
CHUNK_BYTES = 16 * 2**20
SAMPLE_BYTES = 2**20


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; the text names it and says why."""


class Checkpoint(BaseModel):
    """What a checkpoint says of itself (`rljob.json`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    """steps done"""
    prompts: tuple[int, int]
    """where the stream of prompts goes on: epoch and offset"""
    data_fingerprint: str
    """of the rendered training questions; a resume on others is refused"""
    layout: str
    """parallel sizes that wrote it"""
    model: str
    """fingerprint of the model that training began with"""
    precision: str
    """of the weights"""
    files: dict[str, str]
    """XXH3 (128 bits) of each file: it finds damage, and is no defence against an enemy"""


class Saver(Protocol):
    """Whatever writes the tensors: the learner."""

    def save(self, directory: Path) -> None:
        """Write all ranks' state into the directory."""


class Position(Protocol):
    """Whatever knows where the data goes on."""

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
    """told of every complete checkpoint"""
    may_write: Callable[[], None]
    """raises if this process must not change the directory"""

    def save(self, step: int) -> Path:
        """Save the state after `step` steps; return its directory, complete and verified."""
        target = self.directory / name_of(step)
        self._write(step, target)
        self.journal.committed(step, target.name)
        write_atomically(self.directory / TRACKER, str(step).encode())
        for old in complete(self.directory)[self.keep :]:
            shutil.rmtree(old)
        self.saved(step, target)
        log.info("action=save checkpoint=%s", target)
        return target

    def _write(self, step: int, target: Path) -> None:
        self.may_write()
        remove_drafts(self.directory)
        draft = self.directory / f"saving-{target.name}"
        draft.mkdir(parents=True)
        self.learner.save(draft)
        digests = digests_of(draft)
        checkpoint = Checkpoint(
            step=step,
            prompts=self.stream.position,
            data_fingerprint=self.stream.fingerprint,
            layout=self.layout,
            model=self.model,
            precision=self.precision,
            files=digests,
        )
        write_atomically(draft / MANIFEST, checkpoint.model_dump_json(indent=1).encode())
        self.may_write()  # saving takes its time
        draft.rename(target)
        sync_directory(self.directory)


def newest(directory: Path) -> tuple[Path, Checkpoint] | None:
    """Return the newest undamaged checkpoint, or None when there never was one.

    Raises CheckpointError when there are checkpoints and all are damaged: that is not a fresh start.
    """
    damaged = []
    for path in complete(directory):
        try:
            return path, verified(path)
        except CheckpointError as error:
            log.error("action=skip checkpoint=%s reason=Damaged %s", path, error)
            damaged.append(str(error))
    if damaged:
        raise CheckpointError("no checkpoint can be read: " + "; ".join(damaged))
    return None


def remove_drafts(directory: Path) -> None:
    """Remove what an interrupted save has left: it may be what fills the disk."""
    for leftover in directory.glob("saving-*"):
        shutil.rmtree(leftover)


def set_aside(directory: Path, step: int) -> None:
    """Rename what comes after `step` to `damaged-*`: a run that goes on from an older checkpoint makes it again."""
    for path in complete(directory):
        if path.name > name_of(step):
            target = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(target, ignore_errors=True)
            path.rename(target)
            log.warning("action=set_aside checkpoint=%s to=%s", path, target)


def verified(path: Path) -> Checkpoint:
    """Return what the checkpoint says of itself; raise CheckpointError if a file is missing, changed or unreadable."""
    try:
        checkpoint = Checkpoint.model_validate_json((path / MANIFEST).read_text())
    except (OSError, ValidationError) as error:
        raise CheckpointError(f"{path}: {MANIFEST} cannot be read: {error}") from error
    found = digests_of(path)
    missing = sorted(checkpoint.files.keys() - found.keys())
    changed = sorted(name for name in checkpoint.files.keys() & found.keys() if found[name] != checkpoint.files[name])
    if missing or changed:
        raise CheckpointError(f"{path}: missing files {missing}, changed files {changed}")
    return checkpoint


def complete(directory: Path) -> list[Path]:
    """Return the complete checkpoints below a directory, newest first."""
    return sorted(directory.glob("iter_*"), reverse=True)


def model_fingerprint(directory: Path) -> str:
    """Return what tells one Hugging Face checkpoint from another: its configuration, and a sample of its weights."""
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


def digests_of(directory: Path) -> dict[str, str]:
    """Return the digest of each file but the manifest, flushed to the disk."""
    names = sorted(path.name for path in directory.iterdir() if path.is_file() and path.name != MANIFEST)
    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(lambda name: _digest(directory / name), names), strict=True))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = xxhash.xxh3_128()
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
        return digest.hexdigest()


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file so that readers see the old content or the new one, also after a crash."""
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make renames in the directory survive a crash."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
