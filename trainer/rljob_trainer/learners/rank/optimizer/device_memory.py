"""A rank's share of its GPU, given up while engines roll out: weights, gradients and optimizer state.

What a call needs comes back by itself, so no caller can use what is away.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from megatron.core import parallel_state

from rljob_trainer.learners.rank.optimizer.offloadable_tensors import (
    HostMemory,
    OffloadableTensors,
    distinct_storages,
    memory_of,
)
from rljob_trainer.learners.rank.optimizer.optimizer import Optimizer, optimizer_tensors

log = logging.getLogger(__name__)


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


class Leaves:
    """The state of models and their optimizers leaves the device, and comes back when it is needed."""

    def __init__(self, trained: Sequence[tuple[Sequence[Any], Optimizer]], memory: HostMemory) -> None:
        """Take models as chunks in Megatron's DistributedDataParallel, with their optimizer; all is on the device."""
        chunks = [chunk for chunks, _ in trained for chunk in chunks]
        buffers = [each for chunk in chunks for each in (*chunk.buffers, *chunk.expert_parallel_buffers)]
        own = {storage.data_ptr() for storage in distinct_storages(buffer.param_data for buffer in buffers)}
        states = [each for _, optimizer in trained for each in optimizer_tensors(optimizer)]
        self.weights = OffloadableTensors([buffer.param_data for buffer in buffers], memory)
        self.gradients = OffloadableTensors([buffer.grad_data for buffer in buffers], memory, kept=False)
        # fp32 weights are their own masters, and lie in the buffers of weights
        self.optimizer = OffloadableTensors(
            [each for each in states if each.untyped_storage().data_ptr() not in own], memory
        )
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
        parallel_state.get_global_memory_buffer().buffer.clear()  # what tensor ranks have gathered of shared-out tokens
        self._memory.trim()
        log.info("action=leave gib=%.2f seconds=%.3f", here / 2**30, time.perf_counter() - began)


def residence(leaves: bool, trained: Sequence[tuple[Sequence[Any], Optimizer]], device: torch.device) -> Residence:
    """Return where the state of models and their optimizers is between trainings."""
    if not leaves:
        return Stays()
    return Leaves(trained, memory_of(device))
