"""The pieces of all ranks are the whole parameter, each number once, at its place in the whole model."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory

from rljob_trainer.learners.rank.checkpoint import pieces as module
from rljob_trainer.learners.rank.checkpoint.pieces import pieces

TENSOR_RANKS, LAYERS = 2, 3
ROWS, COLUMNS = 4, 3


def column_parallel(rank: int, layer: int) -> ShardedTensor:
    """Return a tensor-parallel rank's rows of a matrix that all layers have, stored as one tensor of all layers."""
    numbers = torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS)
    offsets = (0, layer, LAYERS), (1, rank, TENSOR_RANKS)
    return ShardedTensor.from_rank_offsets("w", numbers, *offsets, replica_id=(0, 0, 0), prepend_axis_num=1)


def gated(rank: int, layer: int) -> ShardedTensorFactory:
    """Return a rank's share of a gated MLP's first matrix: gate and up, which a checkpoint has one after the other."""
    offsets = ((0, layer, LAYERS),)
    return apply_swiglu_sharded_factory(column_parallel(rank, layer), offsets)


def filled(whole: Any, numbers: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return the stored tensor with what data-parallel ranks have of a parameter put at its place."""
    stored = torch.full((LAYERS, TENSOR_RANKS * ROWS, COLUMNS), torch.nan)
    share = -(-numbers.numel() // ranks)
    for rank in range(ranks):
        own = range(min(rank * share, numbers.numel()), min((rank + 1) * share, numbers.numel()))
        flat = numbers.view(-1)[own.start : own.stop]
        covered = []
        for places, piece in pieces(whole, "key", torch.float32, own):
            assert (piece.key, piece.global_shape, piece.replica_id) == ("key", tuple(stored.shape), (0, 0, 0))
            assert piece.data is None and piece.local_shape[0] == 1
            target = stored[piece.global_slice()]
            assert target.isnan().all(), "no number twice"
            target.copy_(flat[places.start : places.stop].view(piece.local_shape))
            covered += places
        assert covered == list(range(len(own)))
    return stored


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 13), st.sampled_from([1, 2, 5, 2**24]), st.integers(0, 1), st.integers(0, 2))
@pytest.mark.parametrize("described", [column_parallel, gated])
def test_pieces_are_the_whole_at_its_place(described: Any, ranks: int, largest: int, rank: int, layer: int) -> None:
    whole = described(rank, layer)
    numbers = torch.rand(ROWS, COLUMNS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGEST", largest)
        stored = filled(whole, numbers, ranks)
    wanted = torch.full_like(stored, torch.nan)
    if isinstance(whole, ShardedTensor):
        parts = [
            ShardedTensor.from_rank_offsets(
                "w", numbers, (0, layer, LAYERS), (1, rank, TENSOR_RANKS), prepend_axis_num=1
            )
        ]
    else:
        parts = whole.build_fn("key", numbers, (0, 0, 0), None)
    for part in parts:
        wanted[part.global_slice()] = part.data
    torch.testing.assert_close(stored, wanted, rtol=0, atol=0, equal_nan=True)


def test_who_has_a_copy_of_the_same_numbers_writes_none() -> None:
    whole = ShardedTensor.from_rank_offsets("norm", torch.zeros(6), replica_id=(0, 1, 3))
    ((_, piece),) = pieces(whole, "key", torch.bfloat16, range(6))
    assert piece.replica_id == (0, 1, 0), "tensor rank 0 writes it; of data-parallel ranks each has a range of its own"
    assert piece.dtype == torch.bfloat16


def test_what_is_stored_in_another_order_is_refused() -> None:
    def turned(key: str, tensor: torch.Tensor, replica: Any, _: Any) -> list[ShardedTensor]:
        return [ShardedTensor.from_rank_offsets(key, tensor.t().contiguous(), replica_id=replica)]

    whole = ShardedTensorFactory("turned", torch.zeros(2, 3), turned, lambda state: state, (0, 0, 0))
    with pytest.raises(NotImplementedError, match="turned: its numbers lie in another order"):
        list(pieces(whole, "key", torch.float32, range(6)))
