"""A rank without a model, to see what the others' errors are taken for when one is gone."""

import os
import signal
import time

FALLS_AFTER_S = 1.0
STAYS_S = 6.0


class FallingRank:
    """Constructed like a rank of the learner."""

    def __init__(self, rank: int, world_size: int, master_address: str, master_port: int) -> None:
        self._falls = rank == 1

    def hang(self) -> None:
        """Rank 1's process dies, and the others wait for it."""
        self._fall()
        time.sleep(60)

    def stick(self) -> None:
        """Rank 1 stays here for a while, and the others are done."""
        if self._falls:
            time.sleep(STAYS_S)

    def fail(self) -> None:
        """Rank 1's process dies, and the others hear of it by their connections before Ray knows."""
        self._fall()
        raise RuntimeError("Connection reset by peer")

    def _fall(self) -> None:
        if self._falls:
            time.sleep(FALLS_AFTER_S)
            os.kill(os.getpid(), signal.SIGKILL)
