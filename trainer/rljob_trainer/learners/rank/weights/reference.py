"""The weights that training started from, for a KL penalty; in host memory, lent to the model for a forward pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from rljob_trainer.learners.rank.experts.experts import held


class ReferenceWeights:
    """A copy of this rank's weights. Evaluated by the policy's own code and shapes: before training KL is exactly 0."""

    def __init__(self, chunks: Sequence[torch.nn.Module]) -> None:
        self._weights = [tensor.detach().to("cpu", copy=True) for tensor in _tensors(chunks)]

    @contextmanager
    def in_place_of(self, chunks: Sequence[torch.nn.Module]) -> Iterator[None]:
        """Let the policy's chunks compute with these weights inside the block; its own are not copied, only set
        aside."""
        tensors = list(_tensors(chunks))
        own = [tensor.data for tensor in tensors]
        try:
            for tensor, weight in zip(tensors, self._weights, strict=True):
                tensor.data = weight.to(tensor.device)
            yield
        finally:
            for tensor, data in zip(tensors, own, strict=True):
                tensor.data = data


def _tensors(chunks: Sequence[torch.nn.Module]) -> Iterator[torch.Tensor]:
    return (tensor for chunk in chunks for _, tensor in held(chunk))
