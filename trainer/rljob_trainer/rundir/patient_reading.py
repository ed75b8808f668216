"""Reads a file that another process or node may still be writing: a checkpoint on a shared volume, for example."""

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

log = logging.getLogger(__name__)

_Read = TypeVar("_Read")
PAUSES_S: Final = (1.0, 2.0, 4.0)
"""before each further try [s]"""


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
