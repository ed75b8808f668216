"""What engines get of the learner's tensors: the tensors themselves, or quantised matrices in their places.

    (q_proj.weight, bf16) ─► Fp8:  (q_proj.weight, e4m3), (q_proj.weight_scale_inv, fp32)
                             Int4: (q_proj.weight_packed, int32), (q_proj.weight_scale, bf16), (q_proj.weight_shape)

All transports send these and digest them, so that an engine is verified to hold these bytes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from rljob_api.sections import Quantization
from rljob_api.sizing.linear import WEIGHT, is_linear, is_matrix
from rljob_api.sizing.quantised import Quantised
from rljob_trainer.sync.layout import LayoutError, TensorSpec
from rljob_trainer.sync.rank.quantised import fp8, int4
from rljob_trainer.sync.rank.sender import Named
from rljob_trainer.text import some

NAMED = 5
PARTS: Final[Mapping[Quantization, Callable[[str, torch.Tensor], Sequence[torch.Tensor]]]] = {
    Quantization.FP8: fp8.parts,
    Quantization.INT4: int4.parts,
}
"""what makes the tensors of a matrix, in the order of `Format.parts`; all raise SendError if it is not finite"""


class Encoding(Protocol):
    """Between the learner's export and what is sent."""

    def specs(self, published: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return what engines get of tensors with these names, shapes and types. Raises LayoutError."""

    def tensors(self, export: Named) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what engines get. Exhausts `export` in any case: exporting is collective. Raises SendError."""


@dataclass(frozen=True, slots=True)
class AsTrained:
    """Engines get the learner's tensors."""

    def specs(self, published: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the same."""
        return tuple(published)

    def tensors(self, export: Named) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the same."""
        yield from export


@dataclass(frozen=True, slots=True)
class InFormat:
    """Engines get quantised matrices, and all else as it is."""

    how: Quantised

    def specs(self, published: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return names, shapes and types.

        Raises LayoutError where the list that engines have got does not fit the model's real tensors, or the format
        does not fit a matrix.
        """
        given = tuple(published)
        check(given, self.how)
        return tuple(each for spec in given for each in self._specs(spec))

    def tensors(self, export: Named) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all tensors; in the place of a matrix that is not left alone, its parts."""
        rest = iter(export)
        try:
            for name, tensor in rest:
                if not self._is_quantised(name, tuple(tensor.shape)):
                    yield name, tensor
                    continue
                endings = (ending for ending, _, _ in self.how.format.parts(tuple(tensor.shape)))
                made = PARTS[self.how.kind](name, tensor)
                yield from ((_named(name, ending), part) for ending, part in zip(endings, made, strict=True))
        finally:
            deque(rest, maxlen=0)

    def _specs(self, spec: TensorSpec) -> Iterator[TensorSpec]:
        if not self._is_quantised(spec.name, spec.shape):
            yield spec
            return
        for ending, axes, dtype in self.how.format.parts(spec.shape):
            yield TensorSpec(_named(spec.name, ending), axes, dtype)

    def _is_quantised(self, name: str, axes: tuple[int, ...]) -> bool:
        return is_matrix(name, axes) and name.removesuffix(WEIGHT) not in self.how.left_alone


def encoding(how: Quantised | None) -> Encoding:
    """Return what stands between the learner and engines whose weights are quantised so; None: they are not."""
    return AsTrained() if how is None else InFormat(how)


def check(given: Iterable[TensorSpec], how: Quantised) -> None:
    """Raise LayoutError if a matrix that is not a linear layer would be quantised, or a linear layer would not.

    Or if the format does not fit a matrix that would be.
    """
    listing = f"quantization_config.{how.format.list_name}"
    matrices = [spec for spec in given if is_matrix(spec.name, spec.shape)]
    kept = {spec.name for spec in matrices if spec.name.removesuffix(WEIGHT) in how.left_alone}
    unlisted = [spec.name for spec in matrices if not is_linear(spec.name) and spec.name not in kept]
    listed = [spec.name for spec in matrices if is_linear(spec.name) and spec.name in kept]
    if unlisted:
        raise LayoutError(f"{listing} lacks a module that is not a linear layer: {some(unlisted, NAMED)}")
    if listed:
        raise LayoutError(f"{listing} has linear layers: {some(listed, NAMED)}")
    for spec in matrices:
        if spec.name not in kept and (rule := how.format.misfit(spec.shape)) is not None:
            raise LayoutError(f"{spec.name}: {spec.shape} {rule}")


def _named(name: str, ending: str) -> str:
    return name.removesuffix(WEIGHT) + ending
