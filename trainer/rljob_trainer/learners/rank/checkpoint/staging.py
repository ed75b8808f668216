"""Host memory that a rank's state is copied to for a checkpoint: it is written from there while training continues."""

import torch

from rljob_trainer.learners.rank.optimizer.offloadable_tensors import PIECE, HostMemory

ALIGNED = 64
"""places of tensors in a buffer are multiples of it [bytes]"""


class Staging:
    """Copies of tensors. The memory is kept for the next checkpoint: pinned memory is slow to get."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._buffers: list[torch.Tensor] = []
        self._next, self._used = 0, 0
        """the buffer that is filled, and how far [bytes]"""

    def empty(self) -> None:
        """Forget the copies: nothing is written from them any more."""
        self._next, self._used = 0, 0

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy in host memory, of a tensor on any device; it is there after `wait`."""
        source = tensor.detach()
        place = self._place(source.numel() * source.itemsize)
        copy = place.view(source.dtype).view(source.shape)
        copy.copy_(source, non_blocking=True)  # in the order of the device's work: its memory may be used again at once
        return copy

    def wait(self) -> None:
        """Return when all copies are there."""
        self._memory.finish_kernels()

    def _place(self, nbytes: int) -> torch.Tensor:
        """Return unused memory of this size, of the first buffer from the present one on that has it."""
        while self._next < len(self._buffers):
            buffer = self._buffers[self._next]
            if self._used + nbytes <= buffer.numel():
                start, self._used = self._used, -(-(self._used + nbytes) // ALIGNED) * ALIGNED
                return buffer.narrow(0, start, nbytes)
            self._next, self._used = self._next + 1, 0
        self._buffers.append(self._memory.buffer(max(PIECE, nbytes)))
        return self._place(nbytes)
