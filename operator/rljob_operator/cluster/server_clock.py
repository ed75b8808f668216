"""The API server's clock, as the `Date` of its answers shows it.

Times of objects are the API server's: when a pod was made, when it was deleted, when Kueue admitted a job. With a clock
that is minutes off, new pods would look lost, and the next replica may run on a node with another clock.
"""

import logging
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

log = logging.getLogger(__name__)

TOLERANCE_S = 3.0
"""a smaller difference is not corrected: a `Date` has whole seconds, and an answer takes its time [s]"""


class ServerClock:
    """Unix seconds of the API server; the node's own until it has answered."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ahead_s = 0.0

    def __call__(self) -> float:
        """Return the time [unix s]."""
        return self._clock() + self._ahead_s

    def heard(self, date: str | None) -> None:
        """Take in the `Date` of an answer that has just come."""
        try:
            ahead_s = parsedate_to_datetime(date or "").timestamp() - self._clock()
        except (TypeError, ValueError, OverflowError):
            return
        if abs(ahead_s - self._ahead_s) <= TOLERANCE_S:
            return
        self._ahead_s = ahead_s if abs(ahead_s) > TOLERANCE_S else 0.0
        log.warning("action=clock outcome=follows the API server's, which is ahead by %.0f s", self._ahead_s)
