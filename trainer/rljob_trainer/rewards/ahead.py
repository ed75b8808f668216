"""What judges that work beside generation have in common: room for what waits, and how scores are awaited."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from sys import getsizeof
from threading import Lock
from typing import TypeVar

from rljob_trainer.rewards.function import Response

T = TypeVar("T")

LOOK_S = 0.2
"""between two signs of life [s]"""
SHARE = 16
"""responses that wait for a judge may take this part of the memory: 1/16"""


@dataclass
class Room:
    """The bytes of responses that may wait for a judge while others are sampled."""

    most: int
    taken: int = 0
    lock: Lock = field(default_factory=Lock)

    def take(self, size: int) -> bool:
        """Take these bytes; return whether there was room. The first response always has room."""
        with self.lock:
            if self.taken and self.taken + size > self.most:
                return False
            self.taken += size
            return True

    def give_back(self, size: int, future: "Future[T]") -> None:
        """Take note that a call is over."""
        with self.lock:
            self.taken -= size


def size_of(responses: Sequence[Response]) -> int:
    """Return the bytes of the responses' texts."""
    return sum(getsizeof(response.text) for response in responses)


def awaited(future: "Future[T]", alive: Callable[[], None]) -> T:
    """Return a result, with signs of life until it is there. Raises what the future does."""
    while not future.done():
        alive()
        wait([future], LOOK_S)
    return future.result()
