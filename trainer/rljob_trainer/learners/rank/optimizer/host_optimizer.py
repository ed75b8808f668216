"""AdamW whose masters and moments are in host memory: a step brings them to the device chunk by chunk.

The device updates each chunk with the kernel that it would update everything with, so every step is the same, bit by
bit. A rank needs memory for its weights, its gradients and one chunk.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rljob_trainer.learners.rank.optimizer.offloadable_tensors import HostMemory, OffloadableTensors
from rljob_trainer.learners.rank.optimizer.optimizer_state import MOMENTS

CHUNK = 2**28
"""masters and moments on the device at once [bytes]; a parameter that has more is a separate chunk"""


def chunks(sizes: Sequence[int], limit: int) -> list[range]:
    """Return parameters of these sizes in chunks of neighbours, each within the limit or of one parameter."""
    found: list[range] = []
    held = 0
    for index, size in enumerate(sizes):
        if found and held + size <= limit:
            found[-1] = range(found[-1].start, index + 1)
            held += size
        else:
            found.append(range(index, index + 1))
            held = size
    return found


class HostOptimizer:
    """Takes the place of the `step` of a torch optimizer that Megatron shares out."""

    def __init__(self, part: Any, copies: Iterable[tuple[torch.Tensor, torch.Tensor]], memory: HostMemory) -> None:
        """`copies`: bf16 weights and their masters; of fp32 weights, which are their own, only moments leave."""
        self._optimizer = part.optimizer
        self._step = part.optimizer.step
        self._weights = {id(master): weight for weight, master in copies}
        masters = [master for group in part.optimizer.param_groups for master in group["params"]]
        sizes = [master.numel() * 4 * (1 + len(MOMENTS)) for master in masters]
        self._chunks = [[masters[index] for index in chunk] for chunk in chunks(sizes, CHUNK)]
        self._movables = [self._begin(chunk, memory) for chunk in self._chunks]
        self._places = {id(master): place for place, chunk in enumerate(self._chunks) for master in chunk}
        self._here: int | None = None
        """the chunk that is on the device"""

    def step(self) -> None:
        """Update all chunks, one after the other, and the bf16 weights by their masters."""
        grads = {id(master): master.grad for chunk in self._chunks for master in chunk}
        for chunk in self._chunks:
            for master in chunk:
                master.grad = None  # AdamW leaves it alone
        for place, chunk in enumerate(self._chunks):
            self._bring(place)
            self._movables[place].change()
            for master in chunk:
                master.grad = grads[id(master)]
            self._step()
            weights = [self._weights[id(master)] for master in chunk if id(master) in self._weights]
            if weights:
                torch._foreach_copy_(weights, [master for master in chunk if id(master) in self._weights])
            for master in chunk:
                master.grad = None
        self.put_away()

    def at_hand(self, master: torch.Tensor, *, changes: bool = False) -> None:
        """Have a master and its moments on the device until another one is asked for; `changes`: to write them."""
        place = self._places[id(master)]
        self._bring(place)
        if changes:
            self._movables[place].change()

    def put_away(self) -> None:
        """Leave nothing on the device."""
        if self._here is not None:
            self._movables[self._here].leave()
            self._here = None

    def _begin(self, chunk: Sequence[torch.Tensor], memory: HostMemory) -> OffloadableTensors:
        """Make the moments of a chunk, and let it leave."""
        states = self._optimizer.state
        for master in chunk:
            moments = {name: torch.zeros_like(master, requires_grad=False) for name in MOMENTS}
            states[master] = {"step": torch.zeros((), dtype=torch.float32, device=master.device), **moments}
        own = [states[master][name] for master in chunk for name in MOMENTS]
        movable = OffloadableTensors([*own, *(master for master in chunk if id(master) in self._weights)], memory)
        movable.leave()
        return movable

    def _bring(self, place: int) -> None:
        if place != self._here:
            self.put_away()
            self._movables[place].come_back()
            self._movables[place].wait()
            self._here = place
