"""How far a checkpoint is: other processes ask, to know that something still happens."""

from dataclasses import dataclass


@dataclass(slots=True)
class Moved:
    """A counter. One thread adds to it, others look."""

    count: int = 0
    """bytes written or read"""

    def add(self, num_bytes: int) -> None:
        """Count bytes that were written or read."""
        self.count += num_bytes
