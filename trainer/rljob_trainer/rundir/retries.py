"""Works with files of a volume that may fail for a while, or that another process or node may still be writing.

    an error that passes (a server that restarts, a stale handle)  ─► again, after a pause, up to `Patience.longest_s`
    content that is half there (`patiently` only)                  ─► again, for some seconds
    a file that is not there, or is damaged                        ─► OSError, at once
    any other error of the file system                             ─► StorageError, at once

So an error of the volume is never taken for damage of what lies on it.
"""

import errno
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from rljob_trainer.reporting.losses import AwayError, Cause, Losses

log = logging.getLogger(__name__)

_Read = TypeVar("_Read")
PAUSES_S: Final = (1.0, 2.0, 4.0)
"""before each further try of what may be half written [s]"""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
PASSING: Final = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.ECOMM,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EINTR,
        errno.EIO,
        errno.EMFILE,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENODEV,
        errno.ENOLCK,
        errno.ENOLINK,
        errno.ENOMEM,
        errno.ENONET,
        errno.ENOTCONN,
        errno.ENXIO,
        errno.EPIPE,
        errno.EPROTO,
        errno.EREMOTEIO,
        errno.ESHUTDOWN,
        errno.ESTALE,
        errno.ETIME,
        errno.ETIMEDOUT,
    }
)
"""what network file systems and their clients report while a server, a link or a mount is away"""
OF_CONTENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EUCLEAN, errno.EBADMSG})
"""what the file system says of a file, not of itself: it is not there, is a link, or is not what was written"""


class StorageError(AwayError):
    """The volume does not let a file be read or written; nothing is known of the file. The text names it."""


def passes(error: BaseException) -> bool:
    """Return whether an error of a file system usually goes away without anything being done."""
    return isinstance(error, OSError) and error.errno in PASSING


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__


def judge_volume(error: BaseException) -> None:
    """Raise the error of a volume, one that passes, from which this one comes, if any: it says nothing of a file."""
    for each in causes(error):
        if passes(each):
            raise each


def _nothing() -> None:
    """Do not report that a file is waited for."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a volume may fail before the attempt ends, and who hears of it meanwhile."""

    longest_s: float = 600.0
    """without a single success [s]"""
    losses: Losses | None = None
    alive: Callable[[], None] = _nothing
    """called before each further try, in the thread that waits"""
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def __call__(self, what: Path | str, work: Callable[[], _Read]) -> _Read:
        """Return what `work` returns, which can be repeated as a whole and names `what` it works on.

        Raises OSError for what is wrong with a file, StorageError for the volume, and what else `work` raises.
        """
        since: float | None = None
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                try:
                    return work()
                except OSError as error:
                    if error.errno in OF_CONTENT:
                        raise
                    since = self.clock() if since is None else since
                    failed_s = self.clock() - since
                    if not passes(error) or failed_s + pause_s > self.longest_s:
                        again = f" (tried again for {failed_s:.0f} s)" if passes(error) else ""
                        raise StorageError(f"{what}: {error}{again}") from error
                    self._note(what, error, pause_s)
                self.alive()
                self.pause(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            if since is not None and self.losses is not None:
                self.losses.waits((Patience, what), None)

    def _note(self, what: Path | str, error: OSError, pause_s: float) -> None:
        reason = " ".join(str(error).split())
        log.warning("action=try_again what=%s seconds=%g reason=%s", what, pause_s, reason)
        if self.losses is not None:
            self.losses.note(Cause.STORAGE)
            self.losses.waits((Patience, what), f"the volume with {what}: {reason}")


PATIENT: Final = Patience()


def patiently(read: Callable[[], _Read], pause: Callable[[float], None] = time.sleep) -> _Read:
    """Return what `read` returns. A file that is half there is read again; one that is not there is not waited for.

    Raises what the last try raised.
    """
    for seconds in PAUSES_S:
        try:
            return read()
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            log.warning("action=read_again seconds=%g reason=%s", seconds, " ".join(str(error).split()))
            pause(seconds)
    return read()
