"""A rank's share of its GPU, given up while engines roll out: weights, gradients and optimizer state.

    leave      storages are copied into host memory, and emptied
    come_back  storages are filled again, with the same bytes

Storages are emptied, and tensors stay: Megatron's buffers, the parameters in them and the optimizer's shards are views
of each other, and all stay valid. What a call needs comes back by itself, so no caller can use what is away.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rljob_trainer.learners.optimizer import Optimizer, optimizer_tensors

log = logging.getLogger(__name__)

PIECE = 2**28
"""host memory that is allocated at once [bytes]: PyTorch rounds pinned memory up to a power of two"""
Copies = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""targets and sources, as bytes"""


class Residence(Protocol):
    """Where a rank's state is: on its device when it is needed, see `Stays` and `Leaves`."""

    def need(self, *, gradients: bool = False, optimizer: bool = False, changes: bool = False) -> None:
        """Have weights on the device, and what else is named. `changes`: the caller changes them."""

    def need_optimizer(self) -> None:
        """Let the device wait for the optimizer state that `need` has called back."""

    def leave(self, *, weights: bool) -> None:
        """Give up the memory of gradients, optimizer state and, if asked, weights."""


class Stays:
    """Everything stays on the device."""

    def need(self, *, gradients: bool = False, optimizer: bool = False, changes: bool = False) -> None:
        """Everything is there."""

    def need_optimizer(self) -> None:
        """It is there."""

    def leave(self, *, weights: bool) -> None:
        """Keep everything."""


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

    def trim(self) -> None:
        """Give freed memory back to other processes."""


class GpuMemory(HostMemory):
    """A GPU's memory. Copies go by a stream of their own, beside what the GPU computes, to and from pinned memory."""

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


class Movable:
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
        self._memory.finish()  # also with what came in and nobody waited for
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


class Leaves:
    """The state of models and their optimizers leaves the device, and comes back when it is needed."""

    def __init__(self, trained: Sequence[tuple[Any, Optimizer]], memory: HostMemory) -> None:
        """Take models as Megatron's DistributedDataParallel, each with its optimizer; all of it is on the device."""
        buffers = [each for ddp, _ in trained for each in (*ddp.buffers, *ddp.expert_parallel_buffers)]
        own = {storage.data_ptr() for storage in distinct_storages(buffer.param_data for buffer in buffers)}
        states = [each for _, optimizer in trained for each in optimizer_tensors(optimizer)]
        self.weights = Movable([buffer.param_data for buffer in buffers], memory)
        self.gradients = Movable([buffer.grad_data for buffer in buffers], memory, kept=False)
        # fp32 weights are their own masters, and lie in the buffers of weights
        self.optimizer = Movable([each for each in states if each.untyped_storage().data_ptr() not in own], memory)
        self._memory = memory

    def need(self, *, gradients: bool = False, optimizer: bool = False, changes: bool = False) -> None:
        """Have weights, and gradients if asked, on the device; begin to bring back the optimizer state if asked.

        That arrives while the GPU computes the gradients: see `need_optimizer`.
        """
        wanted = [self.weights, *([self.gradients] if gradients else []), *([self.optimizer] if optimizer else [])]
        away = sum(each.nbytes for each in wanted if not each.is_here)
        for each in wanted:
            each.come_back()
            if changes:
                each.change()
        self.weights.wait()
        if away:
            log.info("action=come_back gib=%.2f", away / 2**30)

    def need_optimizer(self) -> None:
        """Let the device wait for the optimizer state."""
        self.optimizer.come_back()
        self.optimizer.wait()

    def leave(self, *, weights: bool) -> None:
        """Give up the memory of gradients, optimizer state and, if asked, weights; return when others can have it."""
        began = time.perf_counter()
        leaving = [self.gradients, self.optimizer, *([self.weights] if weights else [])]
        here = sum(each.nbytes for each in leaving if each.is_here)
        for each in leaving:
            each.leave()
        self._memory.trim()
        log.info("action=leave gib=%.2f seconds=%.3f", here / 2**30, time.perf_counter() - began)


def residence(leaves: bool, trained: Sequence[tuple[Any, Optimizer]], device: torch.device) -> Residence:
    """Return where the state of models and their optimizers is between trainings."""
    if not leaves:
        return Stays()
    return Leaves(trained, GpuMemory(device) if device.type == "cuda" else HostMemory())


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
