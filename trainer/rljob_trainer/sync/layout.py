"""Where each Hugging Face tensor of the learner ends up inside an SGLang engine. Pure arithmetic on names and shapes.

SGLang fuses q, k and v, and gate and up; it keeps no second copy of tied embeddings; with tensor parallelism each rank
holds a slice; the experts of a layer are one tensor, and a shared expert is another. Scales of blocks in FP8, and words
and scales of groups in INT4, are laid out like the weights: so are the names and the sizes by which an engine is asked
for them, in any form that its kernels need. Knowing this, the learner can name and digest exactly what each rank must
hold. Covers the families of `rljob_api.sizing.families`, as SGLang 0.5.17 lays
them out.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_api.sizing.tensors import ITEM_BYTES

OF_MLP = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", **OF_MLP}
LATENTS = {"q_a_proj": "fused_qkv_a_proj_with_mqa", "kv_a_proj_with_mqa": "fused_qkv_a_proj_with_mqa"}
"""the same for latent attention where queries have a latent, too; where they have none, nothing of it is fused"""
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight(_scale_inv|_packed|_scale)?")
EXPERTS = {
    "gate_proj": "w13_weight",
    "up_proj": "w13_weight",
    "down_proj": "w2_weight",
    "w1": "w13_weight",
    "w3": "w13_weight",
    "w2": "w2_weight",
}
FUSING_ORDER = {module: place for place, module in enumerate((*FUSED, "w1", "w3", *LATENTS))}
FUSED_IN_FILES = "gate_up_proj"
"""gate and up as one tensor, one below the other; each rank holds some rows of both"""
KEY_VALUE = frozenset({"k_proj", "v_proj"})
COLUMN_PARALLEL = frozenset({"q_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "w1", "w3"})
"""each rank holds some of the rows (torch keeps linear weights as outputs x inputs)"""
ROW_PARALLEL = frozenset({"o_proj", "down_proj", "w2"})
"""each rank holds some of the columns"""
VOCABULARY = frozenset({"embed_tokens", "lm_head"})
VOCABULARY_MULTIPLE = 64
"""SGLang pads the vocabulary with rows of zeros to a multiple of this"""
NOT_HELD = ".weight_shape"
"""ending of the names of tensors that engines need not keep"""


class LayoutError(RunError, ValueError):
    """A model that cannot be laid out over the engine's ranks."""

    exit = Exit.FAILED


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its data."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """torch's name without `torch.`"""

    @property
    def nbytes(self) -> int:
        """Return its size [bytes]."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice of a Hugging Face tensor along one axis."""

    name: str
    axis: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """A tensor in one rank of an engine: pieces one below the other, then rows of zeros."""

    name: str
    pieces: tuple[Piece, ...]
    zero_rows: int = 0


@dataclass(frozen=True, slots=True)
class Sharding:
    """How an engine splits the model over its ranks."""

    ranks: int
    key_value_heads: int
    tied_embeddings: bool
    whole_embedding: bool = False
    """whether each rank holds the whole embedding, without rows of zeros"""


def buckets(specs: Iterable[TensorSpec], limit_bytes: int) -> tuple[tuple[TensorSpec, ...], ...]:
    """Return the tensors in their order, in runs of at most `limit_bytes`; a larger one makes a separate run.

    Neighbours that SGLang joins while it loads them stay together: one that comes without the other is dropped.
    """
    runs: list[list[TensorSpec]] = []
    room = 0
    for _, joined in groupby(specs, _joined):
        some = list(joined)
        size = sum(spec.nbytes for spec in some)
        if not runs or size > room:
            runs.append([])
            room = limit_bytes
        runs[-1] += some
        room -= size
    return tuple(map(tuple, runs))


def engine_tensors(specs: Sequence[TensorSpec], sharding: Sharding, rank: int) -> tuple[EngineTensor, ...]:
    """Return what rank `rank` of an engine holds; fused tensors in SGLang's order q, k, v and gate, up.

    Raises LayoutError when the model does not divide.
    """
    held = [spec for spec in specs if not (sharding.tied_embeddings and spec.name == "lm_head.weight")]
    held = [spec for spec in held if not spec.name.endswith(NOT_HELD)]
    modules = {_module(spec.name) for spec in held}
    latent = OF_MLP | (LATENTS if modules >= LATENTS.keys() else {})
    fused = latent if "kv_a_proj_with_mqa" in modules else FUSED

    def parameter(spec: TensorSpec) -> str:
        return engine_name(spec.name, fused)

    held.sort(key=lambda spec: (parameter(spec), *_place(spec)))
    return tuple(_engine_tensor(name, tuple(parts), sharding, rank) for name, parts in groupby(held, parameter))


def engine_name(name: str, fused: Mapping[str, str] = FUSED) -> str:
    """Return SGLang's parameter that a Hugging Face tensor is loaded into, `fused` those that join several modules."""
    if expert := EXPERT.fullmatch(name):
        return f"{expert[1]}.{EXPERTS[expert[3]]}{expert[4] or ''}"
    module = _module(name)
    return name.replace(module, fused[module]) if module in fused else name


def _place(spec: TensorSpec) -> tuple[int, int]:
    """Return what sorts the tensors of a parameter as the engine lays them out: expert by expert."""
    expert = EXPERT.fullmatch(spec.name)
    return int(expert[2]) if expert else 0, FUSING_ORDER.get(_module(spec.name), 0)


def _joined(spec: TensorSpec) -> str:
    """Return what tensors have in common that SGLang joins by itself; of others their name."""
    return engine_name(spec.name, LATENTS)


def _module(name: str) -> str:
    """Return `q_proj` for `model.layers.0.self_attn.q_proj.weight`."""
    return name.split(".")[-2] if "." in name else name


def _engine_tensor(name: str, parts: tuple[TensorSpec, ...], sharding: Sharding, rank: int) -> EngineTensor:
    if _module(name) in VOCABULARY and not sharding.whole_embedding:
        return _vocabulary_tensor(name, parts[0], sharding, rank)
    return EngineTensor(name, tuple(piece for spec in parts for piece in _pieces(spec, sharding, rank)))


def _pieces(spec: TensorSpec, sharding: Sharding, rank: int) -> tuple[Piece, ...]:
    if _module(spec.name) != FUSED_IN_FILES:
        return (_piece(spec, sharding, rank),)
    half = spec.shape[0] // 2
    gate = _shard(TensorSpec(spec.name, (half, *spec.shape[1:]), spec.dtype), 0, sharding.ranks, rank)
    return gate, Piece(spec.name, 0, half + gate.start, half + gate.stop)


def _piece(spec: TensorSpec, sharding: Sharding, rank: int) -> Piece:
    module = _module(spec.name)
    if module in KEY_VALUE:
        # fewer heads than ranks: neighbouring ranks hold copies of the same head
        shards = min(sharding.ranks, sharding.key_value_heads)
        return _shard(spec, 0, shards, rank * shards // sharding.ranks)
    if module in COLUMN_PARALLEL:
        return _shard(spec, 0, sharding.ranks, rank)
    if module in ROW_PARALLEL and len(spec.shape) == 2:
        return _shard(spec, 1, sharding.ranks, rank)
    return Piece(spec.name, 0, 0, spec.shape[0])


def _shard(spec: TensorSpec, axis: int, shards: int, index: int) -> Piece:
    size, rest = divmod(spec.shape[axis], shards)
    if rest:
        raise LayoutError(f"{spec.name}: axis {axis} of {spec.shape} cannot be divided over {shards} ranks")
    return Piece(spec.name, axis, index * size, (index + 1) * size)


def _vocabulary_tensor(name: str, spec: TensorSpec, sharding: Sharding, rank: int) -> EngineTensor:
    rows = spec.shape[0]
    padded = math.ceil(rows / VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    if padded % sharding.ranks:
        raise LayoutError(f"{spec.name}: {padded} padded rows do not divide over {sharding.ranks} ranks")
    size = padded // sharding.ranks
    start, stop = min(rows, rank * size), min(rows, (rank + 1) * size)
    return EngineTensor(name, (Piece(spec.name, 0, start, stop),), zero_rows=size - (stop - start))
