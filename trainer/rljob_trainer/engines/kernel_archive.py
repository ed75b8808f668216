"""The kernels that engines compile when they start, kept in the run directory for engines that start on other machines.

    engine starts ─► unpack what an earlier engine has compiled ─► it compiles what is missing ─► pack, if that was any

The directories are those of `rljob_api.kernels`. A problem with the archive is logged and costs time, never a start. If
an engine does not start, the archive is removed, because it may be the reason.
"""

import logging
import os
import shutil
import tarfile
import threading
from contextlib import suppress
from pathlib import Path

from rljob_trainer.processes.file_lock import locked

log = logging.getLogger(__name__)

NAME = "kernels/engines.tar"
"""in the run directory"""
THREAD = "kernels"
"""name of the thread that packs"""
UNPACKED = ".unpacked"
LOCK = ".lock"
TIME = "RLJOB.mtime"
"""header with a file's time [ns]. Ninja builds again what is newer than it has noted, and tar's own time is rounded"""
MOST_BYTES = 1 << 30
"""of an archive: more is no cache of kernels, and fills the run's volume"""


def unpack(directory: Path, archive: Path) -> bool:
    """Fill a machine's directory from the archive, once; return whether that was done now."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory / LOCK):
            if (directory / UNPACKED).exists() or not archive.exists():
                return False
            (directory / UNPACKED).touch()
            with tarfile.open(archive) as tar:
                tar.extractall(directory, filter="data")
                for member in tar:
                    when = int(member.pax_headers[TIME])
                    os.utime(directory / member.name, ns=(when, when))
    except (OSError, tarfile.TarError, KeyError) as error:
        log.warning("action=unpack_kernels archive=%s reason=%s", archive, error)
        return False
    log.info("action=unpack_kernels archive=%s bytes=%d", archive, archive.stat().st_size)
    return True


def pack(directory: Path, archive: Path) -> bool:
    """Write the archive if a machine's directory has files that it lacks; return whether that was done."""
    writing = archive.with_name(f"{archive.name}.{os.uname().nodename}-{os.getpid()}")
    try:
        files = {str(path.relative_to(directory)): path for path in _files(directory)}
        if files.keys() <= _names(archive):
            return False
        before = {name: _version(path) for name, path in files.items()}
        if (num_bytes := sum(size for size, _ in before.values())) > MOST_BYTES:
            log.warning("action=pack_kernels reason=TooLarge bytes=%d most=%d", num_bytes, MOST_BYTES)
            return False
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(writing, "w") as tar:
            for name in sorted(files):
                member = tar.gettarinfo(files[name], name)
                member.pax_headers = {TIME: str(before[name][1])}
                with files[name].open("rb") as file:
                    tar.addfile(member, file)
        if {name: _version(path) for name, path in files.items()} != before:
            raise OSError("files have changed meanwhile")
        writing.rename(archive)
    except (OSError, tarfile.TarError) as error:
        log.warning("action=pack_kernels archive=%s reason=%s", archive, error)
        with suppress(OSError):
            writing.unlink()
        return False
    log.info("action=pack_kernels archive=%s files=%d bytes=%d", archive, len(files), num_bytes)
    return True


def discard(directory: Path, archive: Path) -> None:
    """Remove the archive and all that this machine has compiled."""
    try:
        shutil.rmtree(directory)
        archive.unlink(missing_ok=True)
    except OSError as error:
        log.warning("action=discard_kernels archive=%s reason=%s", archive, error)


def pack_soon(directory: Path, archive: Path) -> None:
    """Do `pack` beside the engine, which serves meanwhile."""
    threading.Thread(target=pack, args=(directory, archive), name=THREAD, daemon=True).start()


def _files(directory: Path) -> list[Path]:
    marks = {directory / UNPACKED, directory / LOCK}
    return [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink() and path not in marks]


def _version(file: Path) -> tuple[int, int]:
    """Return what changes with a file's content: its size and time."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def _names(archive: Path) -> set[str]:
    """Return the names of the files in an archive; none if it cannot be read."""
    try:
        with tarfile.open(archive) as tar:
            return set(tar.getnames())
    except (OSError, tarfile.TarError):
        return set()
