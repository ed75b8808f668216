"""A file of a volume that may fail for a while, for libraries that read files by themselves."""

import os
from collections.abc import Callable
from contextlib import suppress
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader, RawIOBase
from pathlib import Path
from typing import Any

from rljob_trainer.rundir.retries import Patience

BUFFER_BYTES = 2**20


def retrying_file(path: Path, patience: Patience) -> BufferedReader:
    """Return a file to read. Opening and reading it raise OSError for a file that is not there, and StorageError."""
    return BufferedReader(_PatientFile(path, patience), BUFFER_BYTES)


class _PatientFile(RawIOBase):
    """Stays where it was when a read fails, and opens the file again: a stale handle stays stale."""

    def __init__(self, path: Path, patience: Patience) -> None:
        self._path, self._patience = path, patience
        self._place = 0
        self._descriptor: int | None = None
        self._size = patience(path, lambda: self._tried(lambda file: os.fstat(file).st_size))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        start = {SEEK_SET: 0, SEEK_CUR: self._place, SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"{self._path}: seek to {start + offset}")
        self._place = start + offset
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        here = self._place
        read = self._patience(self._path, lambda: self._tried(lambda file: os.preadv(file, [buffer], here)))
        self._place += read
        return read

    def close(self) -> None:
        self._leave()
        super().close()

    def _tried(self, work: Callable[[int], int]) -> int:
        try:
            return work(self._open())
        except OSError:
            self._leave()
            raise

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return self._descriptor

    def _leave(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)
