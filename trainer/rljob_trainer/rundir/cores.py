"""Core dumps of GPUs in a run's directory: `spec.debug.cudaLaunchBlocking` asks for them, CUDA's driver writes them."""

import logging
from pathlib import Path

from rljob_api.control import CORES

log = logging.getLogger(__name__)


def make_place(directory: Path) -> None:
    """Make the folder of core dumps of the run in `directory`: CUDA makes none, and would write no dump."""
    (directory / CORES).mkdir(parents=True, exist_ok=True)


def cores(directory: Path) -> tuple[Path, ...]:
    """Return the core dumps of the run in `directory`, oldest first; a folder without a run has none."""
    dumps = [(path.stat().st_mtime, path) for path in (directory / CORES).glob("*.core")]
    return tuple(path for _, path in sorted(dumps))


def open_with(core: Path) -> str:
    """Return the command that shows the kernel, block and thread that failed."""
    return f"cuda-gdb -ex 'target cudacore {core}'"


class NewCores:
    """The core dumps that an attempt adds. Make it before the attempt begins."""

    def __init__(self, directory: Path) -> None:
        """`directory` is the run's, and need not exist yet."""
        self._directory = directory
        try:
            self._old = cores(directory)
        except OSError as error:  # of the volume, for which the attempt will wait
            log.warning("action=look_at_cores directory=%s outcome=failed: %s", directory, error)
            self._old = ()

    def report(self) -> None:
        """Log where each new core dump is, and how it is opened."""
        try:
            found = cores(self._directory)
        except OSError as error:
            log.warning("action=look_at_cores directory=%s outcome=failed: %s", self._directory, error)
            return
        for core in found:
            if core not in self._old:
                log.error("action=keep_core file=%s open=%r", core, open_with(core))
