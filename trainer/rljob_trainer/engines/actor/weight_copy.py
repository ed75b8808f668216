"""The copy of the weights on a machine with engines: brought up to date by a delta, or whole, and read by the engines.

Runs in the actor beside an engine. All engines of a machine share the copy, so that a delta crosses the network once
for each machine. Versions are known by the digest of all their bytes. The copy may be of an earlier attempt, of
a version before the last, or damaged: a delta either makes exactly the wanted bytes of it or is refused, and only a
copy that has been verified carries its digest. It is verified once for each publication.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rljob_trainer.engines import weight_delta
from rljob_trainer.engines.weight_delta import Bytes, DeltaError
from rljob_trainer.engines.weight_offer import Delta, WeightFiles, digest
from rljob_trainer.processes.file_lock import locked

WEIGHTS = "model.safetensors"
HELD = "digest"
"""file beside the copy, with its digest and the offer for which it was verified; absent: the copy is of no version"""
LOCK = "lock"
CHUNK_BYTES = 16 * 2**20


class CopyError(RuntimeError):
    """The whole weights did not arrive."""


def apply_delta(files: WeightFiles, copy: Path) -> int:
    """Bring the copy in directory `copy` up to date by the delta; return how many bytes were read of the files.

    These are none if the copy is up to date already. Raises DeltaError if it lacks the right base, or if the delta is
    missing or damaged: the copy then needs the whole weights.
    """
    with _locked(copy):
        held, offer = _held(copy)
        if held == files.digest:
            if offer != files.offer:
                with _changing(copy, files):
                    _check(_mapped(copy, files), files.digest)
            return 0
        if files.delta is None:
            raise DeltaError("there is no delta for this version")
        if held != files.delta.base:
            raise DeltaError(f"the machine holds {held or 'no weights'}, the delta is for {files.delta.base}")
        delta = _read(files.delta_path, files.delta)
        weights = _mapped(copy, files)
        with _changing(copy, files), weight_delta.threads("apply") as workers:
            weight_delta.apply(delta, weights, workers)
            _check(weights, files.digest)
        return len(delta)


def copy_whole(files: WeightFiles, copy: Path) -> int:
    """Copy the whole weights, unless another engine of the machine has; return how many bytes were read.

    Raises CopyError if other bytes arrive, and OSError if there is no file or no room.
    """
    with _locked(copy):
        if _held(copy)[0] == files.digest:
            return 0
        with _changing(copy, files):
            _copy(files.whole_path, copy / WEIGHTS)
            try:
                _check(_mapped(copy, files), files.digest)
            except DeltaError as error:
                raise CopyError(f"copy {files.whole_path}: {error}") from error
        return files.nbytes


def _copy(source: Path, target: Path) -> None:
    """Copy into the file that is there: fresh pages cost more than the copy."""
    target.touch()
    with source.open("rb") as whole, target.open("r+b") as file:
        shutil.copyfileobj(whole, file, CHUNK_BYTES)
        file.truncate()


@contextmanager
def _locked(copy: Path) -> Iterator[None]:
    """Keep the actors of other engines of this machine away from the copy."""
    copy.mkdir(parents=True, exist_ok=True)
    with locked(copy / LOCK):
        yield


@contextmanager
def _changing(copy: Path, becomes: WeightFiles) -> Iterator[None]:
    """Let the copy have no digest while it changes, and keep it so if that fails or this process dies."""
    (copy / HELD).unlink(missing_ok=True)
    yield
    (copy / HELD).write_text(f"{becomes.digest} {becomes.offer}")


def _held(copy: Path) -> tuple[str | None, str]:
    """Return the copy's digest, None if it is of no version, and the offer for which it was verified."""
    try:
        held, _, offer = (copy / HELD).read_text().partition(" ")
    except FileNotFoundError:
        return None, ""
    return held, offer


def _read(path: Path, wanted: Delta) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DeltaError(f"the delta cannot be read: {error}") from error
    if digest(content) != wanted.digest:
        raise DeltaError(f"{path.name} is damaged: {len(content)} bytes, {wanted.nbytes} were written")
    return content


def _mapped(copy: Path, files: WeightFiles) -> Bytes:
    """Return the copy, mapped; what is written to it is in the file. Raises DeltaError if it has another size."""
    path = copy / WEIGHTS
    if not path.exists() or path.stat().st_size != files.nbytes:
        raise DeltaError(f"{path} does not have {files.nbytes} bytes")
    return np.asarray(np.memmap(path, np.uint8, "r+"))


def _check(weights: Bytes, wanted: str) -> None:
    if (found := digest(weights)) != wanted:
        raise DeltaError(f"the copy has the digest {found} instead of {wanted}")
