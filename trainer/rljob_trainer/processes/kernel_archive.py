"""The kernels that engines and the learner compile, kept in the run directory for processes on other machines.

    start ─► unpack what earlier processes have compiled ─► compile what is missing ─► pack, if that was any

There is one archive. A process that packs adds what it lacks. The directories are those of `rljob_api.kernels`. A
problem with the archive is logged and costs time, never a start. If an engine does not start, the archive is removed,
because it may be the reason.

What it holds is code, and others may write to the run's volume: each file has a seal by a key of the job's pods. An
archive with any other file is not taken, and is replaced.
"""

import hashlib
import hmac
import io
import json
import logging
import os
import secrets
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rljob_api.control import kernels_key
from rljob_api.foreign_text import printable
from rljob_api.kernels import DIRECTORY_VARIABLE
from rljob_api.sections import Device
from rljob_trainer.private_files import created, draft_of
from rljob_trainer.processes.file_lock import locked

log = logging.getLogger(__name__)

NAME = "kernels/kernels.tar"
"""in the run directory"""
THREAD = "kernels"
"""name of the thread that packs"""
MARK = ".rljob-"
"""begins names of rljob's files in a machine's directory"""
LOCK, UNPACKED = f"{MARK}lock", f"{MARK}unpacked"
DIGEST = "RLJOB.sha256"
"""header with the digest of a file: a node that crashes may leave zeros in it"""
SEAL = "RLJOB.seal"
"""header with an HMAC of a file's name, size, time and digest"""
OF_THIS_PROCESS = secrets.token_bytes(32)
"""a key that no other process has"""
TIME = "RLJOB.mtime"
"""header with a file's time [ns]. Ninja builds again what is newer than it has noted, and tar's own time is rounded"""
MOST_BYTES = 1 << 30
"""of an archive: more is not a cache of kernels, and fills the run's volume"""


class Kernels(Protocol):
    """The compiled kernels of a process that is about to start."""

    def unpack(self) -> bool:
        """Fill the machine's directory, once; return whether that was done now."""

    def pack(self) -> bool:
        """Keep what the machine has compiled, if some of it is new; return whether that was done."""

    def pack_soon(self) -> None:
        """Do `pack` beside other work."""

    def discard(self) -> None:
        """Forget what was kept, and what this machine has compiled."""


@dataclass(frozen=True, slots=True)
class KeptKernels:
    """Kernels that an archive keeps."""

    directory: Path
    """of the machine"""
    archive: Path
    key: bytes = field(default=OF_THIS_PROCESS, repr=False)
    """of all processes that trust each other's files"""

    def unpack(self) -> bool:
        """Fill the machine's directory from the archive, once; return whether that was done now."""
        directory, archive = self.directory, self.archive
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with locked(directory / LOCK):
                if (directory / UNPACKED).exists() or not archive.exists():
                    return False
                (directory / UNPACKED).touch()
                with tempfile.TemporaryDirectory(prefix=MARK, dir=directory) as staging:
                    _extract(archive, Path(staging), self.key)
                    _move_missing(Path(staging), directory)
        except (OSError, ValueError, tarfile.TarError) as error:
            log.warning("action=unpack_kernels archive=%s reason=%s", archive, printable(str(error)))
            if isinstance(error, tarfile.TarError):  # it is unusable, and no process replaces one that exists
                _remove(archive)
            return False
        log.info("action=unpack_kernels archive=%s bytes=%d", archive, archive.stat().st_size)
        return True

    def pack(self) -> bool:
        """Write the archive if the machine's directory has files that it lacks; return whether that was done."""
        archive = self.archive
        writing = draft_of(archive)
        try:
            files = {str(path.relative_to(self.directory)): path for path in _files(self.directory)}
            sizes = _sizes(archive, self.key)
            if files.keys() <= sizes.keys():
                return False
            before = {name: _version(path) for name, path in files.items()}
            if (num_bytes := sum(size for size, _ in before.values())) > MOST_BYTES:
                log.warning("action=pack_kernels reason=TooLarge bytes=%d most=%d", num_bytes, MOST_BYTES)
                return False
            others = {name: size for name, size in sizes.items() if name not in files}
            if num_bytes + sum(others.values()) > MOST_BYTES:  # some are of earlier versions
                others = {}
            archive.parent.mkdir(parents=True, exist_ok=True)
            with created(writing) as file, tarfile.open(fileobj=file, mode="w") as tar:
                _add(tar, files, before, self.key)
                _copy(tar, archive, others, self.key)
            if {name: _version(path) for name, path in files.items()} != before:
                raise OSError("files have changed meanwhile")
            writing.rename(archive)
        except (OSError, tarfile.TarError) as error:
            log.warning("action=pack_kernels archive=%s reason=%s", archive, printable(str(error)))
            _remove(writing)
            return False
        log.info("action=pack_kernels archive=%s files=%d bytes=%d", archive, len(files), num_bytes)
        return True

    def pack_soon(self) -> None:
        """Do `pack` in a thread."""
        threading.Thread(target=self.pack, name=THREAD, daemon=True).start()

    def discard(self) -> None:
        """Remove the archive and all that this machine has compiled."""
        try:
            shutil.rmtree(self.directory)
            self.archive.unlink(missing_ok=True)
        except OSError as error:
            log.warning("action=discard_kernels archive=%s reason=%s", self.archive, error)


class NoKernels:
    """Nothing is kept: nothing is compiled, or the process is not in a pod."""

    def unpack(self) -> bool:
        """Do nothing."""
        return False

    def pack(self) -> bool:
        """Do nothing."""
        return False

    def pack_soon(self) -> None:
        """Do nothing."""

    def discard(self) -> None:
        """Do nothing."""


def archive_of(directory: Path, device: Device) -> Path | None:
    """Return where the run in this directory keeps kernels; None: on a CPU nothing is compiled."""
    return None if device is Device.CPU else directory / NAME


def kernels_of(environ: Mapping[str, str], archive: Path | None) -> Kernels:
    """Return the kernels of a process with this environment; it may compile none that are worth keeping."""
    directory, key = environ.get(DIRECTORY_VARIABLE), kernels_key(environ)
    return KeptKernels(Path(directory), archive, key) if directory and archive and key else NoKernels()


def _add(tar: tarfile.TarFile, files: Mapping[str, Path], versions: Mapping[str, tuple[int, int]], key: bytes) -> None:
    """Add these files by name, with their exact times, digests and seals."""
    for name in sorted(files):
        member = tar.gettarinfo(files[name], name)
        content = files[name].read_bytes()
        member.size = len(content)
        member.pax_headers = {TIME: str(versions[name][1]), DIGEST: hashlib.sha256(content).hexdigest()}
        member.pax_headers[SEAL] = _seal(member, key)
        tar.addfile(member, io.BytesIO(content))


def _seal(member: tarfile.TarInfo, key: bytes) -> str:
    """Return the seal that a file should have."""
    text = json.dumps([member.name, member.size, *(member.pax_headers.get(name) for name in (TIME, DIGEST))])
    return hmac.digest(key, text.encode(errors="surrogateescape"), "sha256").hex()


def _is_sealed(member: tarfile.TarInfo, key: bytes) -> bool:
    """Return whether a file is one that a process with this key has added; its content may still be another one."""
    seal = member.pax_headers.get(SEAL, "")
    return member.isreg() and hmac.compare_digest(seal.encode(errors="replace"), _seal(member, key).encode())


def _extract(archive: Path, directory: Path, key: bytes) -> None:
    """Extract all files, with their exact times. Raises tarfile.TarError if one is damaged, or of another user."""
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        for member in members:
            if not _is_sealed(member, key):
                raise tarfile.TarError(f"{printable(member.name, 200)} is of another job, or of none")
        tar.extractall(directory, members, filter="data")
        for member in members:
            file, when = directory / member.name, int(member.pax_headers[TIME])
            if hashlib.sha256(file.read_bytes()).hexdigest() != member.pax_headers[DIGEST]:
                raise tarfile.TarError(f"{member.name} is damaged")
            os.utime(file, ns=(when, when))


def _move_missing(source: Path, target: Path) -> None:
    """Move files into another directory of the same disk, but for those that it has."""
    for file in _files(source):
        wanted = target / file.relative_to(source)
        if not wanted.exists():
            wanted.parent.mkdir(parents=True, exist_ok=True)
            file.rename(wanted)


def _copy(tar: tarfile.TarFile, archive: Path, names: Collection[str], key: bytes) -> None:
    """Add what another archive has by these names, with the seals that it has."""
    if not names:
        return
    with tarfile.open(archive) as other:
        for member in other:
            if member.name in names and _is_sealed(member, key):
                tar.addfile(member, other.extractfile(member))


def _files(directory: Path) -> list[Path]:
    """Return the kernels in a machine's directory: all files but ours, and no links."""
    kept = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in kept if not path.relative_to(directory).parts[0].startswith(MARK)]


def _version(file: Path) -> tuple[int, int]:
    """Return what changes with a file's content: its size and time."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def _sizes(archive: Path, key: bytes) -> dict[str, int]:
    """Return the sealed files in an archive with their sizes [bytes]; none if it cannot be read."""
    try:
        with tarfile.open(archive) as tar:
            return {member.name: member.size for member in tar if _is_sealed(member, key)}
    except (OSError, ValueError, tarfile.TarError):
        return {}


def _remove(file: Path) -> None:
    """Remove a file, if that is possible."""
    with suppress(OSError):
        file.unlink()
