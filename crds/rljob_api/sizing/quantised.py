"""Formats of weights in engines: what a matrix becomes, what an engine is given of it, which sizes it allows. Pure.

    spec.rollout.quantization ─► FORMATS: Fp8, Int4 ─► `config.json` of engines, memory plan, what is published

`sync/rank/quantised/` of the trainer computes the numbers. `linear.py` says which matrices are quantised.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from rljob_api.errors import Problem
from rljob_api.sections import Placement, Quantization, Spec
from rljob_api.sizing.fp8 import Fp8
from rljob_api.sizing.int4 import Int4
from rljob_api.sizing.linear import left_alone, matrices
from rljob_api.sizing.model_shape import Shape, engine_obstacles, undivided
from rljob_api.sizing.tensors import ITEM_BYTES, Axes, tensors_of


class Format(Protocol):
    """One way to quantise a matrix."""

    @property
    def list_name(self) -> str:
        """where `quantization_config` has the modules that are not quantised"""

    @property
    def unit(self) -> str:
        """what has a scale, in words: `blocks of 128`"""

    @property
    def formula(self) -> str:
        """bytes of quantised weights, in words"""

    def config(self, left_alone: Sequence[str]) -> dict[str, Any]:
        """Return the entry `quantization_config` of `config.json` by which an engine makes room for the weights."""

    def parts(self, axes: Axes) -> tuple[tuple[str, Axes, str], ...]:
        """Return ending of the name, shape and type of each tensor that takes the place of a matrix' `.weight`."""

    def misfit(self, axes: Axes) -> str | None:
        """Return why a matrix of this shape cannot be quantised, with the nearest shape that can; None: it can."""

    def obstacles(self, model: Shape, size: int) -> list[str]:
        """Return the matrices on a GPU of an engine with `size` GPUs that the format or its kernels do not divide."""


FORMATS: Final[Mapping[Quantization, Format]] = {Quantization.FP8: Fp8(), Quantization.INT4: Int4()}


@dataclass(frozen=True, slots=True)
class Quantised:
    """How the weights of a model are quantised for engines."""

    kind: Quantization
    left_alone: tuple[str, ...]
    """modules that are not quantised although they are matrices"""

    @property
    def format(self) -> Format:
        """Return its format."""
        return FORMATS[self.kind]


def of_model(kind: Quantization, model: Shape) -> Quantised:
    """Return how a model is quantised."""
    return Quantised(kind, left_alone(tensors_of(model)))


def quantization_config(how: Quantised) -> dict[str, Any]:
    """Return the entry of `config.json` by which an engine makes room for quantised weights."""
    return how.format.config(how.left_alone)


def part_bytes(kind: Quantization, model: Shape) -> int:
    """Return the size of what the quantised matrices of a model become [bytes]."""
    made = FORMATS[kind].parts
    parts = (part for axes in matrices(model).values() for part in made(axes))
    return sum(math.prod(axes) * ITEM_BYTES[dtype] for _, axes, dtype in parts)


def problems(model: Shape, spec: Spec) -> Iterator[Problem]:
    """Yield where an engine cannot lay out the quantised weights of a model of this shape."""
    if (kind := spec.rollout.quantization) is None:
        return
    format_, given, node = FORMATS[kind], spec.rollout.gpus_per_engine, spec.training.gpus_per_node
    if cut := format_.obstacles(model, 1):
        others = [str(each) for each, other in FORMATS.items() if not other.obstacles(model, 1)]
        rule = f"needs widths that {format_.unit} divide, and the model has {' and '.join(cut)}"
        yield Problem("spec.rollout.quantization", kind, rule, " or ".join((*others, "leave it out")))
    elif not engine_obstacles(model, given):
        colocated = spec.placement is Placement.COLOCATED
        possible = [size for size in range(1, model.heads + 1) if not colocated or node % size == 0]
        fits = [size for size in possible if not engine_obstacles(model, size)]
        found = undivided("spec.rollout.gpusPerEngine", given, partial(format_.obstacles, model), fits)
        if found is not None:
            cut = format_.obstacles(model, given)
            rule = f"cuts {format_.unit}, which spec.rollout.quantization scales: {' and '.join(cut)}"
            yield Problem(found.field, given, rule, found.nearest)
