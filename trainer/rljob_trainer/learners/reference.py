"""The weights that training started from, for a KL penalty; in host memory, lent to the model for a forward pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


class ReferenceWeights:
    """A copy of this rank's weights. Evaluated by the policy's own code and shapes: before training KL is exactly 0."""

    def __init__(self, chunks: Sequence[torch.nn.Module]) -> None:
        self._weights = [parameter.detach().to("cpu", copy=True) for parameter in _parameters(chunks)]

    @contextmanager
    def in_place_of(self, chunks: Sequence[torch.nn.Module]) -> Iterator[None]:
        """Let the policy's chunks compute with these weights inside the block; its own are not copied, only set
        aside."""
        parameters = list(_parameters(chunks))
        own = [parameter.data for parameter in parameters]
        try:
            for parameter, weight in zip(parameters, self._weights, strict=True):
                parameter.data = weight.to(parameter.device)
            yield
        finally:
            for parameter, data in zip(parameters, own, strict=True):
                parameter.data = data


def _parameters(chunks: Sequence[torch.nn.Module]) -> Iterator[torch.nn.Parameter]:
    return (parameter for chunk in chunks for parameter in chunk.parameters())
