"""A device whose memory is counted and limited, and whose copies are made as late as a GPU may make them."""

from collections.abc import Callable

import torch

from rljob_trainer.learners.rank.optimizer.offloadable_tensors import Copies, HostMemory


class CountedMemory(HostMemory):
    """Counts the bytes of storages that were resized; the content of allocated memory is 255 everywhere."""

    def __init__(self, capacity: int | None = None) -> None:
        self.used = 0
        self.peak = 0
        self.capacity = capacity
        self.buffers: list[int] = []
        """host memory that was ever asked for [bytes]"""
        self.copied = 0
        """bytes, in both directions"""
        self.trims = 0
        self._late: list[Copies] = []

    def hold(self, nbytes: int) -> None:
        """Count memory that was there before."""
        self.used += nbytes
        self.peak = max(self.peak, self.used)

    def buffer(self, nbytes: int) -> torch.Tensor:
        """Note the size."""
        self.buffers.append(nbytes)
        return super().buffer(nbytes)

    def resize(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Raise MemoryError beyond the capacity."""
        self.hold(nbytes - storage.nbytes())
        if self.capacity is not None and self.used > self.capacity:
            raise MemoryError(f"{self.used} of {self.capacity} bytes")
        super().resize(storage, nbytes)
        torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)

    def copy(self, copies: Copies) -> Callable[[], None]:
        """Copy when it is waited for, and not before."""
        self.copied += sum(target.numel() for target, _ in copies)
        self._late.append(copies)
        return self.finish

    def finish(self) -> None:
        """Make all copies."""
        for copies in self._late:
            super().copy(copies)
        self._late = []

    def trim(self) -> None:
        """Count."""
        self.trims += 1
