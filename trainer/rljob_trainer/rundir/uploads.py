"""Uploads checkpoints beside the training, which never waits for a store.

The newest complete checkpoint is uploaded. What fails is tried again, with longer pauses, until it succeeds or a newer
checkpoint is there. The checkpoint that is being uploaded is not deleted from the volume meanwhile.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rljob_api.control import Finding
from rljob_trainer.remote.errors import RemoteError
from rljob_trainer.rundir.checkpoints import step_of
from rljob_trainer.rundir.fence import FencedError
from rljob_trainer.rundir.remote_checkpoints import RemoteCheckpoints

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
AT_END_S = 60.0
"""longest wait at the end of an attempt without a byte [s]"""
SLOWEST = 5e6
"""bytes a second, below which the end of an attempt does not wait for an upload"""
LOOK_S = 0.5


class _EndedError(Exception):
    """The attempt ends."""


@dataclass
class Uploads:
    """The uploads of one driver. One thread sends; all other methods are of the main thread."""

    place: str
    """`spec.checkpoint.remote`"""
    connect: Callable[[], RemoteCheckpoints]
    """is called for each upload. Raises RemoteError"""
    run: Path
    keep: int
    may_write: Callable[[], None]
    """raises FencedError if another driver works in the directory"""
    first_pause_s: float = FIRST_PAUSE_S
    longest_pause_s: float = LONGEST_PAUSE_S
    trouble: str | None = None
    """why the last try failed; None: it did not"""
    step: int | None = None
    """of the newest checkpoint that is known to be in the store"""
    sent: int = 0
    """bytes"""
    _wanted: Path | None = None
    _current: Path | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _over: bool = False
    _thread: threading.Thread | None = None

    def offer(self, path: Path) -> None:
        """Have a complete checkpoint uploaded, instead of an older one that still waits."""
        with self._changed:
            self._wanted = path
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
                self._thread.start()

    def uses(self, path: Path) -> bool:
        """Return whether a checkpoint is being uploaded, so that it must stay."""
        with self._changed:
            return path in (self._current, self._wanted)

    def finish(self, longest_s: float, alive: Callable[[], None], silence_s: float = AT_END_S) -> bool:
        """Wait for what was offered; return whether it is there. Ends early if nothing is sent for `silence_s`."""
        began = moved = time.monotonic()
        sent = self.sent
        with self._changed:
            while self._wanted is not None or self._current is not None:
                now = time.monotonic()
                if self.sent != sent:
                    sent, moved = self.sent, now
                if now - began > longest_s or now - moved > silence_s:
                    return False
                alive()
                self._changed.wait(LOOK_S)
        return True

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """End the thread after the part that it is sending."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(LOOK_S)

    def _work(self) -> None:
        pause_s = self.first_pause_s
        while (path := self._next()) is not None:
            try:
                self.connect().upload(self.run, path, self.keep, self._alive)
            except (_EndedError, FencedError) as error:
                log.warning("action=upload checkpoint=%s outcome=ended reason=%r", path, str(error))
                return
            except (RemoteError, OSError, ValueError) as error:
                log.warning(
                    "action=upload checkpoint=%s outcome=again seconds=%.0f reason=%r", path, pause_s, why := str(error)
                )
                self._failed(path, why)
                self._pause(pause_s)
                pause_s = min(2 * pause_s, self.longest_pause_s)
            else:
                self._done(path)
                pause_s = self.first_pause_s

    def _next(self) -> Path | None:
        with self._changed:
            while self._wanted is None and not self._over:
                self._changed.wait()
            if self._over:
                return None
            self._current, self._wanted = self._wanted, None
            return self._current

    def _failed(self, path: Path, why: str) -> None:
        with self._changed:
            self.trouble = why
            if self._wanted is None:
                self._wanted = path
            self._current = None
            self._changed.notify_all()

    def _done(self, path: Path) -> None:
        with self._changed:
            self.trouble, self.step, self._current = None, step_of(path), None
            self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        with self._changed:
            known = self._wanted
            self._changed.wait_for(lambda: self._over or self._wanted != known, seconds)

    def _alive(self, number: int) -> None:
        self.sent += number
        if self._over:
            raise _EndedError("the attempt ends")
        self.may_write()


def failing(prefix: str, why: str) -> Finding:
    """Return that checkpoints do not reach the store."""
    return Finding(
        name="CheckpointUploadFailing",
        evidence=f"spec.checkpoint.remote {prefix}: {why}",
        advice="check bucket, credentials and network: checkpoints are on the volume, and uploads are tried again",
    )


def longest_wait_s(size: int) -> float:
    """Return how long the end of an attempt waits for an upload of some bytes [s]."""
    return AT_END_S + size / SLOWEST
