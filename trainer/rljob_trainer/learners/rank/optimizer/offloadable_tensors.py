"""Tensors whose device memory can be given up for a while: their bytes wait in host memory.

    leave      storages are copied into host memory, and emptied
    come_back  storages are filled again, with the same bytes

Storages are emptied, and tensors stay: Megatron's buffers, the parameters in them and the optimizer's shards are views
of each other, and all stay valid.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

PIECE = 2**28
"""host memory that is allocated at once [bytes]: PyTorch rounds pinned memory up to a power of two"""
Copies = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""targets and sources, as bytes"""


class HostMemory:
    """The memory of a CPU rank: for tests, in which a rank's state leaves memory and comes back, too."""

    def buffer(self, nbytes: int) -> torch.Tensor:
        """Return host memory for copies, which is made once and reused."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def resize(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Free the memory of a storage (0), or allocate it with any content."""
        storage.resize_(nbytes)

    def copy(self, copies: Copies) -> Callable[[], None]:
        """Begin to copy; return what makes later work on the device wait for the copies."""
        for target, source in copies:
            target.copy_(source)
        return _nothing

    def finish(self) -> None:
        """Return when all copies are made."""

    def finish_kernels(self) -> None:
        """Return when the device has done all that it was asked for so far."""

    def trim(self) -> None:
        """Give freed memory back to other processes."""


class GpuMemory(HostMemory):
    """A GPU's memory. Copies go by a separate stream, beside what the GPU computes, to and from pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def buffer(self, nbytes: int) -> torch.Tensor:
        """Return pinned host memory: only from there copies run beside kernels."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, copies: Copies) -> Callable[[], None]:
        """Begin to copy what kernels asked for so far will have written."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for target, source in copies:
                target.copy_(source, non_blocking=True)
            copied = self._stream.record_event()
        return lambda: torch.cuda.current_stream(self._device).wait_event(copied)

    def finish(self) -> None:
        """Wait for the stream of copies."""
        self._stream.synchronize()

    def finish_kernels(self) -> None:
        """Wait for the stream of kernels."""
        torch.cuda.current_stream(self._device).synchronize()

    def trim(self) -> None:
        """Return PyTorch's cache to the driver, after the last kernel that uses it."""
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes of a storage that lie in one piece of host memory."""

    storage: int
    start: int
    piece: int
    offset: int
    length: int


def laid_out(sizes: Sequence[int], piece: int) -> list[Stretch]:
    """Return where the bytes of storages of these sizes lie in pieces of host memory, one after the other."""
    stretches: list[Stretch] = []
    place = 0
    for storage, size in enumerate(sizes):
        start = 0
        while start < size:
            index, offset = divmod(place, piece)
            length = min(size - start, piece - offset)
            stretches.append(Stretch(storage, start, index, offset, length))
            start, place = start + length, place + length
    return stretches


class OffloadableTensors:
    """Tensors whose memory can be given up; their content comes back, or is undefined if it is not kept."""

    def __init__(self, tensors: Iterable[torch.Tensor], memory: HostMemory, *, kept: bool = True) -> None:
        self._storages = distinct_storages(tensors)
        self._sizes = [storage.nbytes() for storage in self._storages]
        self._memory = memory
        self._kept = kept
        self._pieces: list[torch.Tensor] = []
        """of host memory, from the first time that something leaves"""
        self._same = False
        """the host has the present content"""
        self._arrive: Callable[[], None] = _nothing
        self.is_here = True

    @property
    def nbytes(self) -> int:
        """Return the bytes of all storages."""
        return sum(self._sizes)

    def change(self) -> None:
        """Note that the content changes from here on: it must be copied before it leaves."""
        self._same = False

    def leave(self) -> None:
        """Copy the content to the host, unless it has the same already, and free the memory."""
        if not self.is_here:
            return
        if self._kept and not self._same:
            self.wait()
            self._pieces = self._pieces or self._host_memory()
            self._memory.copy([(host, own) for own, host in self._pairs()])
        self._memory.finish()  # also copies in that were not waited for
        for storage in self._storages:
            self._memory.resize(storage, 0)
        self.is_here, self._same, self._arrive = False, True, _nothing

    def come_back(self) -> None:
        """Allocate the memory, and begin to copy the content into it."""
        if self.is_here:
            return
        for storage, size in zip(self._storages, self._sizes, strict=True):
            self._memory.resize(storage, size)
        if self._kept:
            self._arrive = self._memory.copy(self._pairs())
        self.is_here = True

    def wait(self) -> None:
        """Let the device wait until the content is there."""
        self._arrive()
        self._arrive = _nothing

    def _host_memory(self) -> list[torch.Tensor]:
        full, rest = divmod(self.nbytes, PIECE)
        return [self._memory.buffer(size) for size in [*[PIECE] * full, *([rest] if rest else [])]]

    def _pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return stretches of the storages with their places in host memory."""
        own = [_bytes(storage) for storage in self._storages]
        return [
            (own[each.storage].narrow(0, each.start, each.length), host.narrow(0, each.offset, each.length))
            for each in laid_out(self._sizes, PIECE)
            for host in (self._pieces[each.piece],)
        ]


def memory_of(device: torch.device) -> HostMemory:
    """Return the memory of a rank's device."""
    return GpuMemory(device) if device.type == "cuda" else HostMemory()


def distinct_storages(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """Return the storages of tensors, each once, without empty ones."""
    return list({storage.data_ptr(): storage for storage in _storages(tensors) if storage.nbytes()}.values())


def _storages(tensors: Iterable[torch.Tensor]) -> Iterator[torch.UntypedStorage]:
    return (tensor.untyped_storage() for tensor in tensors)


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a view of all bytes of a storage."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _nothing() -> None:
    """There is nothing to wait for."""
