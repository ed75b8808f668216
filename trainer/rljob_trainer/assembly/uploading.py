"""Adds an object store to the checkpoints of a run: restores from it at a start, and uploads beside the steps."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rljob_api import sections
from rljob_api.sections import Resume
from rljob_trainer import parts
from rljob_trainer.remote.stores import store_of
from rljob_trainer.reporting.report import Report
from rljob_trainer.rundir.checkpoints import DIRECTORY, CheckpointError, complete
from rljob_trainer.rundir.remote_checkpoints import RemoteCheckpoints
from rljob_trainer.rundir.resume import is_begun
from rljob_trainer.rundir.retries import Patience
from rljob_trainer.rundir.uploads import Uploads, failing, longest_wait_s

log = logging.getLogger(__name__)


def remote_of(place: str, environ: Mapping[str, str]) -> RemoteCheckpoints:
    """Return the checkpoints at a place. Raises RemoteError."""
    return RemoteCheckpoints(store_of(place, environ), place.rstrip("/") + "/")


def restore(
    directory: Path, wish: sections.Checkpoint, origin: str, environ: Mapping[str, str], patience: Patience
) -> None:
    """Bring a checkpoint from `spec.checkpoint.remote` into a run's directory that has none.

    Raises RemoteError: a store that cannot be asked is not an empty one, and a run must not begin anew by mistake.
    Raises CheckpointError if none is intact, or `Fresh` begins anew where other checkpoints are.
    """
    if wish.remote is None or complete(directory / DIRECTORY, patience):
        return
    remote = remote_of(wish.remote, environ)
    if wish.resume is Resume.FRESH and not is_begun(directory, origin, patience):
        if there := remote.whole():
            raise CheckpointError(
                f"spec.checkpoint.remote: {remote.prefix} holds checkpoints, the newest of step {max(there)}, "
                "and spec.checkpoint.resume Fresh begins anew; name another place"
            )
        return
    remote.restore(directory, wish.resume_step, lambda _: patience.alive())


@dataclass(frozen=True, slots=True)
class WithUploads:
    """Checkpoints that are uploaded, too: implements `parts.Checkpoints`."""

    checkpoints: parts.Checkpoints
    uploads: Uploads
    report: Report
    beat: Callable[[], None]

    def begin(self, step: int) -> None:
        """See `parts.Checkpoints`; never waits for the store."""
        self.checkpoints.begin(step)
        self._look(step)

    def check(self) -> None:
        """See `parts.Checkpoints`."""
        self.checkpoints.check()
        self._look(self.report.progress().step)

    def settle(self) -> None:
        """See `parts.Checkpoints`; uploads read complete checkpoints only, and continue."""
        self.checkpoints.settle()

    def save(self, step: int) -> Path:
        """Save the state, and wait for its upload, within a limit that follows its bytes: an attempt ends with it.

        What is not there then, the next attempt uploads.
        """
        path = self.checkpoints.save(step)
        longest_s = longest_wait_s(sum(file.stat().st_size for file in path.iterdir()))
        if not self.uploads.finish(longest_s, self.beat):
            log.warning(
                "action=upload checkpoint=%s outcome=later reason=%r", path, self.uploads.trouble or "time is up"
            )
        self._look(step)
        return path

    def _look(self, step: int) -> None:
        """Report that uploads fail, once, and that they succeed again."""
        trouble = self.uploads.trouble
        if self.report.uploaded(self.uploads.step, trouble is not None) and trouble is not None:
            self.report.found(failing(self.uploads.place, trouble), step)


def uploads_of(
    run: Path, wish: sections.Checkpoint, environ: Mapping[str, str], may_write: Callable[[], None]
) -> Uploads | None:
    """Return the uploads of a run; None: its manifest names no store.

    The store is not asked here: one that is away must not end a run that has its checkpoints on the volume.
    """
    place = wish.remote
    return None if place is None else Uploads(place, lambda: remote_of(place, environ), run, wish.keep, may_write)
