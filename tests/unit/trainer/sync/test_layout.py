import pytest

from rljob_trainer.sync.layout import (
    EngineTensor,
    LayoutError,
    Piece,
    Sharding,
    TensorSpec,
    buckets,
    engine_name,
    engine_tensors,
)

LAYER = "model.layers.0"
SPECS = tuple(
    TensorSpec(name, shape, "float32")
    for name, shape in {
        "model.embed_tokens.weight": (100, 8),
        f"{LAYER}.mlp.up_proj.weight": (12, 8),
        f"{LAYER}.mlp.gate_proj.weight": (12, 8),
        f"{LAYER}.mlp.down_proj.weight": (8, 12),
        f"{LAYER}.self_attn.v_proj.weight": (4, 8),
        f"{LAYER}.self_attn.k_proj.weight": (4, 8),
        f"{LAYER}.self_attn.q_proj.weight": (8, 8),
        f"{LAYER}.self_attn.q_norm.weight": (2,),
        f"{LAYER}.self_attn.o_proj.weight": (8, 8),
        "lm_head.weight": (100, 8),
    }.items()
)


def held(ranks: int, rank: int, *, tied: bool = False, key_value_heads: int = 2) -> dict[str, EngineTensor]:
    sharding = Sharding(ranks, key_value_heads, tied)
    return {tensor.name: tensor for tensor in engine_tensors(SPECS, sharding, rank)}


def test_query_key_and_value_are_fused_in_this_order_whatever_the_export_order() -> None:
    tensor = held(1, 0)[f"{LAYER}.self_attn.qkv_proj.weight"]
    assert [piece.name.split(".")[-2] for piece in tensor.pieces] == ["q_proj", "k_proj", "v_proj"]


def test_gate_comes_before_up() -> None:
    tensor = held(1, 0)[f"{LAYER}.mlp.gate_up_proj.weight"]
    assert [piece.name.split(".")[-2] for piece in tensor.pieces] == ["gate_proj", "up_proj"]


def test_tied_embeddings_are_held_once() -> None:
    assert "lm_head.weight" not in held(1, 0, tied=True)
    assert "lm_head.weight" in held(1, 0, tied=False)


def test_biases_are_fused_like_weights() -> None:
    assert engine_name(f"{LAYER}.self_attn.k_proj.bias") == f"{LAYER}.self_attn.qkv_proj.bias"


def test_the_vocabulary_is_padded_with_zeros_to_a_multiple_of_64() -> None:
    assert held(1, 0)["model.embed_tokens.weight"] == EngineTensor(
        "model.embed_tokens.weight", (Piece("model.embed_tokens.weight", 0, 0, 100),), zero_rows=28
    )


def test_the_second_of_two_ranks_has_the_rest_of_the_vocabulary_and_the_padding() -> None:
    assert held(2, 1)["lm_head.weight"] == EngineTensor(
        "lm_head.weight", (Piece("lm_head.weight", 0, 64, 100),), zero_rows=28
    )


def test_rows_of_fused_tensors_are_split_one_by_one() -> None:
    tensor = held(2, 1)[f"{LAYER}.self_attn.qkv_proj.weight"]
    assert [(piece.start, piece.stop) for piece in tensor.pieces] == [(4, 8), (2, 4), (2, 4)]


def test_output_projections_are_split_by_columns() -> None:
    assert held(2, 1)[f"{LAYER}.mlp.down_proj.weight"].pieces == (Piece(f"{LAYER}.mlp.down_proj.weight", 1, 6, 12),)


@pytest.mark.parametrize(("rank", "rows"), [(0, (0, 2)), (1, (0, 2)), (2, (2, 4)), (3, (2, 4))])
def test_ranks_share_a_key_value_head_when_there_are_fewer_heads_than_ranks(rank: int, rows: tuple[int, int]) -> None:
    key = held(4, rank)[f"{LAYER}.self_attn.qkv_proj.weight"].pieces[1]
    assert (key.start, key.stop) == rows


def test_norms_are_on_every_rank_in_full() -> None:
    assert held(2, 0)[f"{LAYER}.self_attn.q_norm.weight"] == held(2, 1)[f"{LAYER}.self_attn.q_norm.weight"]


def test_a_model_that_does_not_divide_is_refused_by_name() -> None:
    with pytest.raises(LayoutError, match=r"down_proj\.weight: axis 1 of \(8, 12\) does not divide over 8 ranks"):
        held(8, 0)


def test_buckets_keep_the_order_and_the_limit() -> None:
    specs = [TensorSpec(str(size), (size,), "bfloat16") for size in (3, 2, 9, 1, 4)]
    assert [[spec.name for spec in run] for run in buckets(specs, 10)] == [["3", "2"], ["9"], ["1", "4"]]
