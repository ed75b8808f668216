"""A certificate in a mounted directory; another program, such as cert-manager, renews it."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from rljob_operator.webhook.certificate import Pair

log = logging.getLogger(__name__)

LOOK_S = 10.0
"""between two looks at the files [s]; a kubelet updates them up to a minute late"""


class Mounted:
    """The files `tls.crt` and `tls.key` of a directory."""

    def __init__(self, directory: Path, use: Callable[[Pair], None]) -> None:
        """`use` serves a pair from now on."""
        self._directory = directory
        self._use = use
        self._in_use: Pair | None = None

    async def keep(self) -> None:
        """Look after the files for ever."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Serve what the files hold, if they are there and fit each other."""
        try:
            found = Pair(*((self._directory / name).read_text() for name in ("tls.crt", "tls.key")))
            if found != self._in_use:
                self._use(found)
                self._in_use = found
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError: one file is newer than the other
            log.warning("action=read-certificate directory=%s outcome=failed: %s", self._directory, error)
