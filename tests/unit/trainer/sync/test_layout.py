from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
from rljob_trainer.sync.rank.digest import tensor_digest

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


@pytest.mark.parametrize(("ranks", "rank"), [(1, 0), (2, 1)])
def test_the_experts_of_a_layer_are_one_tensor_in_the_order_of_their_numbers(ranks: int, rank: int) -> None:
    shapes = {"gate_proj": (4, 8), "up_proj": (4, 8), "down_proj": (8, 4)}
    names = [f"{LAYER}.mlp.experts.{expert}.{module}.weight" for expert in range(11) for module in sorted(shapes)]
    specs = [TensorSpec(name, shapes[name.split(".")[-2]], "float32") for name in names]
    specs.append(TensorSpec(f"{LAYER}.mlp.gate.weight", (11, 8), "float32"))
    held = engine_tensors(specs, Sharding(ranks, 2, False), rank)
    by_name = {each.name.removeprefix(f"{LAYER}.mlp."): each for each in held}
    assert set(by_name) == {"gate.weight", "experts.w13_weight", "experts.w2_weight"}
    size = 4 // ranks
    here = rank * size, rank * size + size
    assert by_name["gate.weight"].pieces == (Piece(f"{LAYER}.mlp.gate.weight", 0, 0, 11),)
    assert by_name["experts.w13_weight"].pieces == tuple(
        Piece(f"{LAYER}.mlp.experts.{expert}.{module}.weight", 0, *here)
        for expert in range(11)
        for module in ("gate_proj", "up_proj")
    )
    assert by_name["experts.w2_weight"].pieces == tuple(
        Piece(f"{LAYER}.mlp.experts.{expert}.down_proj.weight", 1, *here) for expert in range(11)
    )


def test_an_embedding_that_engines_do_not_split_is_whole_on_each_rank_without_padding() -> None:
    specs = [TensorSpec("model.embed_tokens.weight", (100, 8), "float32")]
    for rank in (0, 1):
        (tensor,) = engine_tensors(specs, Sharding(2, 1, tied_embeddings=True, whole_embedding=True), rank)
        assert tensor == EngineTensor(specs[0].name, (Piece(specs[0].name, 0, 0, 100),))


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


@pytest.mark.parametrize("rank", [0, 1])
def test_a_bias_is_fused_and_split_as_its_weight_is(rank: int) -> None:
    specs = [
        TensorSpec(f"{LAYER}.self_attn.{module}_proj.bias", (8 if module == "q" else 2,), "float32") for module in "vqk"
    ]
    (tensor,) = engine_tensors(specs, Sharding(2, 1, False), rank)
    assert tensor.name == f"{LAYER}.self_attn.qkv_proj.bias"
    assert [(piece.start, piece.stop) for piece in tensor.pieces] == [(4 * rank, 4 * rank + 4), (0, 2), (0, 2)]


@pytest.mark.parametrize("rank", [0, 1])
def test_gate_and_up_of_one_tensor_are_split_each(rank: int) -> None:
    name = f"{LAYER}.mlp.gate_up_proj.weight"
    (tensor,) = engine_tensors([TensorSpec(name, (24, 8), "float32")], Sharding(2, 2, False), rank)
    start = 6 * rank
    assert tensor == EngineTensor(name, (Piece(name, 0, start, start + 6), Piece(name, 0, 12 + start, 18 + start)))


def test_gate_and_up_of_one_tensor_must_divide_each() -> None:
    spec = TensorSpec(f"{LAYER}.mlp.gate_up_proj.weight", (6, 8), "float32")
    with pytest.raises(LayoutError, match=r"gate_up_proj\.weight: axis 0"):
        engine_tensors([spec], Sharding(2, 2, False), 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_experts_of_mixtral_are_two_tensors_of_a_layer(rank: int) -> None:
    experts, shapes = f"{LAYER}.block_sparse_moe.experts", {"w1": (4, 8), "w2": (8, 4), "w3": (4, 8)}
    specs = [
        TensorSpec(f"{experts}.{n}.{module}.weight", axes, "float32") for n in (0, 1) for module, axes in shapes.items()
    ]
    held = {each.name: each.pieces for each in engine_tensors(specs, Sharding(2, 2, False), rank)}
    start, stop = 2 * rank, 2 * rank + 2
    assert held == {
        f"{experts}.w13_weight": tuple(
            Piece(f"{experts}.{n}.{module}.weight", 0, start, stop) for n in (0, 1) for module in ("w1", "w3")
        ),
        f"{experts}.w2_weight": tuple(Piece(f"{experts}.{n}.w2.weight", 1, start, stop) for n in (0, 1)),
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_a_shared_expert_is_split_like_an_mlp_and_a_router_s_bias_is_whole(rank: int) -> None:
    mlp, shapes = f"{LAYER}.mlp", {"gate_proj": (4, 8), "up_proj": (4, 8), "down_proj": (8, 4)}
    shared = [TensorSpec(f"{mlp}.shared_experts.{name}.weight", axes, "bfloat16") for name, axes in shapes.items()]
    bias = TensorSpec(f"{mlp}.gate.e_score_correction_bias", (6,), "float32")
    held = {each.name: each.pieces for each in engine_tensors([*shared, bias], Sharding(2, 2, False), rank)}
    start, stop = 2 * rank, 2 * rank + 2
    assert held == {
        f"{mlp}.shared_experts.gate_up_proj.weight": (
            Piece(shared[0].name, 0, start, stop),
            Piece(shared[1].name, 0, start, stop),
        ),
        f"{mlp}.shared_experts.down_proj.weight": (Piece(shared[2].name, 1, start, stop),),
        bias.name: (Piece(bias.name, 0, 0, 6),),
    }


def test_norms_are_on_every_rank_in_full() -> None:
    assert held(2, 0)[f"{LAYER}.self_attn.q_norm.weight"] == held(2, 1)[f"{LAYER}.self_attn.q_norm.weight"]


LATENT = {"kv_a_proj_with_mqa": (12, 8), "kv_b_proj": (20, 4), "o_proj": (8, 12)} | dict.fromkeys(
    ("gate_proj", "up_proj"), (4, 8)
)


def latent_attention(queries: dict[str, tuple[int, int]], rank: int) -> dict[str, list[tuple[str, int, int, int]]]:
    """Return what a rank of two holds of a layer with latent attention: modules, axes and rows or columns."""
    specs = [TensorSpec(f"{LAYER}.{name}.weight", axes, "float32") for name, axes in (LATENT | queries).items()]
    return {
        _module_of(tensor.name): [(_module_of(each.name), each.axis, each.start, each.stop) for each in tensor.pieces]
        for tensor in engine_tensors(specs, Sharding(2, 2, False), rank)
    }


def _module_of(name: str) -> str:
    return name.split(".")[-2]


@pytest.mark.parametrize("rank", [0, 1])
def test_latents_are_whole_and_joined_on_every_rank_and_what_comes_after_is_split_by_heads(rank: int) -> None:
    rest = {
        "kv_b_proj": [("kv_b_proj", 0, 10 * rank, 10 * rank + 10)],
        "o_proj": [("o_proj", 1, 6 * rank, 6 * rank + 6)],
        "gate_up_proj": [(name, 0, 2 * rank, 2 * rank + 2) for name in ("gate_proj", "up_proj")],
    }
    assert latent_attention({"q_b_proj": (16, 6), "q_a_proj": (6, 8)}, rank) == rest | {
        "fused_qkv_a_proj_with_mqa": [("q_a_proj", 0, 0, 6), ("kv_a_proj_with_mqa", 0, 0, 12)],
        "q_b_proj": [("q_b_proj", 0, 8 * rank, 8 * rank + 8)],
    }
    assert latent_attention({"q_proj": (16, 8)}, rank) == rest | {
        "kv_a_proj_with_mqa": [("kv_a_proj_with_mqa", 0, 0, 12)],
        "q_proj": [("q_proj", 0, 8 * rank, 8 * rank + 8)],
    }


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [
        (10, [["a", "0.q_a_proj", "0.kv_a_proj_with_mqa"], ["b", "1.q_a_proj", "1.kv_a_proj_with_mqa"]]),
        (9, [["a"], ["0.q_a_proj", "0.kv_a_proj_with_mqa"], ["b"], ["1.q_a_proj", "1.kv_a_proj_with_mqa"]]),
        (12, [["a", "0.q_a_proj", "0.kv_a_proj_with_mqa", "b"], ["1.q_a_proj", "1.kv_a_proj_with_mqa"]]),
        (2, [["a"], ["0.q_a_proj", "0.kv_a_proj_with_mqa"], ["b"], ["1.q_a_proj", "1.kv_a_proj_with_mqa"]]),
    ],
)
def test_what_an_engine_joins_while_it_loads_is_in_one_bucket(limit: int, wanted: list[list[str]]) -> None:
    pair = {"q_a_proj": 1, "kv_a_proj_with_mqa": 3}
    sizes = {"a": 1, **{f"0.{name}": size for name, size in pair.items()}, "b": 1}
    sizes |= {f"1.{name}": size for name, size in pair.items()}
    specs = [TensorSpec(f"{name}.weight", (size,), "bfloat16") for name, size in sizes.items()]
    assert [[spec.name.removesuffix(".weight") for spec in run] for run in buckets(specs, limit)] == wanted


def test_a_model_that_does_not_divide_is_refused_by_name() -> None:
    with pytest.raises(LayoutError, match=r"down_proj\.weight: axis 1 of \(8, 12\) cannot be divided over 8 ranks"):
        held(8, 0)


def test_buckets_keep_the_order_and_the_limit() -> None:
    specs = [TensorSpec(str(size), (size,), "bfloat16") for size in (3, 2, 9, 1, 4)]
    assert [[spec.name for spec in run] for run in buckets(specs, 10)] == [["3", "2"], ["9"], ["1", "4"]]


NAMES = ("embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "norm")


@given(
    ranks=st.sampled_from([1, 2, 4, 8]),
    heads=st.sampled_from([1, 2, 4, 8]),
    rows=st.integers(1, 200),
    size=st.integers(1, 3),
)
def test_the_ranks_of_an_engine_hold_the_model_once_put_together(ranks: int, heads: int, rows: int, size: int) -> None:
    """Against torch's own chunks of the whole tensors."""
    shapes = dict.fromkeys(NAMES, (8 * size, 16)) | {"embed_tokens": (rows, 16), "norm": (16,)}
    tensors = {f"model.{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    tensors["model.o_proj.bias"] = torch.randn(8)
    specs = tuple(TensorSpec(name, tuple(tensor.shape), "float32") for name, tensor in tensors.items())
    found: list[dict[str, torch.Tensor]] = []
    for rank in range(ranks):
        held = engine_tensors(specs, Sharding(ranks, heads, True), rank)
        found.append({})
        for wanted in held:
            tensor_digest(wanted, tensors, lambda pieces, name=wanted.name: keep(found[-1], name, pieces))  # type: ignore[misc]

    def part(name: str, axis: int, shards: int, rank: int) -> torch.Tensor:
        return tensors[f"model.{name}.weight"].chunk(shards, axis)[rank * shards // ranks]

    padded = torch.cat([tensors["model.embed_tokens.weight"], torch.zeros(-rows % 64, 16)])
    for rank in range(ranks):
        key_value = [part(name, 0, min(ranks, heads), rank) for name in ("k_proj", "v_proj")]
        assert_equal(
            found[rank],
            {
                "model.embed_tokens.weight": padded.chunk(ranks)[rank],
                "model.qkv_proj.weight": torch.cat([part("q_proj", 0, ranks, rank), *key_value]),
                "model.o_proj.weight": part("o_proj", 1, ranks, rank),
                "model.o_proj.bias": tensors["model.o_proj.bias"],
                "model.gate_up_proj.weight": torch.cat(
                    [part(name, 0, ranks, rank) for name in ("gate_proj", "up_proj")]
                ),
                "model.down_proj.weight": part("down_proj", 1, ranks, rank),
                "model.norm.weight": tensors["model.norm.weight"],
            },
        )


def keep(found: dict[str, torch.Tensor], name: str, pieces: Sequence[torch.Tensor]) -> str:
    found[name] = torch.cat(list(pieces))
    return ""


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def test_a_vocabulary_that_does_not_divide_is_refused_by_name() -> None:
    with pytest.raises(LayoutError, match=r"^lm_head\.weight: 128 padded rows do not divide over 3 ranks$"):
        held(3, 0)


def test_sizes_are_in_bytes() -> None:
    assert [TensorSpec("w", (2, 3), dtype).nbytes for dtype in ("float32", "bfloat16", "float16")] == [24, 12, 12]


def test_a_tensor_without_a_module_keeps_its_name() -> None:
    assert [engine_name(name) for name in ("weight", "norm.weight")] == ["weight", "norm.weight"]


BLOCKS = {
    "q_proj": (4, 3),
    "k_proj": (2, 3),
    "v_proj": (2, 3),
    "o_proj": (3, 4),
    "gate_proj": (4, 3),
    "up_proj": (4, 3),
}


@pytest.mark.parametrize("part", ["weight_scale_inv", "weight_packed", "weight_scale"])
@pytest.mark.parametrize(("ranks", "rank"), [(1, 0), (2, 1)])
def test_scales_and_words_are_laid_out_like_their_weights(ranks: int, rank: int, part: str) -> None:
    names = {name: f"{LAYER}.self_attn.{name}.{part}" for name in BLOCKS}
    specs = [TensorSpec(names[name], axes, "float32") for name, axes in sorted(BLOCKS.items())]
    found = {each.name.split(".")[-2]: each for each in engine_tensors(specs, Sharding(ranks, 2, False), rank)}
    assert {each.name.split(".")[-1] for each in found.values()} == {part}

    def of(name: str, axis: int, size: int) -> Piece:
        return Piece(names[name], axis, rank * size // ranks, (rank + 1) * size // ranks)

    assert found["qkv_proj"].pieces == (of("q_proj", 0, 4), of("k_proj", 0, 2), of("v_proj", 0, 2))
    assert found["gate_up_proj"].pieces == (of("gate_proj", 0, 4), of("up_proj", 0, 4))
    assert found["o_proj"].pieces == (of("o_proj", 1, 4),)


@pytest.mark.parametrize("ends", [("", "_scale_inv"), ("_packed", "_scale")])
def test_the_scales_of_experts_are_one_tensor_beside_their_weights(ends: tuple[str, str]) -> None:
    modules = ("down_proj", "up_proj")
    names = [f"{LAYER}.mlp.experts.{expert}.{module}.weight" for expert in (0, 1) for module in modules]
    specs = [TensorSpec(name + end, (2, 2), "float32") for name in names for end in ends]
    found = {each.name: each for each in engine_tensors(specs, Sharding(1, 2, False), 0)}
    experts = f"{LAYER}.mlp.experts"
    assert set(found) == {f"{experts}.{each}_weight{end}" for each in ("w13", "w2") for end in ends}
    scales = found[f"{experts}.w2_weight{ends[1]}"].pieces
    assert [piece.name for piece in scales] == [f"{experts}.{each}.down_proj.weight{ends[1]}" for each in (0, 1)]


def test_shapes_are_sent_and_not_held() -> None:
    modules = (f"{LAYER}.self_attn.o_proj", f"{LAYER}.mlp.experts.0.up_proj")
    specs = [TensorSpec(f"{module}.weight_shape", (2,), "int32") for module in modules]
    assert engine_tensors(specs, Sharding(1, 2, False), 0) == ()


def test_a_cut_of_words_that_ranks_do_not_divide_is_refused_by_name() -> None:
    specs = [TensorSpec(name := f"{LAYER}.self_attn.o_proj.weight_packed", (4, 9), "int32")]
    with pytest.raises(LayoutError, match=rf"^{name}: axis 1 of \(4, 9\) cannot be divided over 2 ranks$"):
        engine_tensors(specs, Sharding(2, 2, False), 0)


def test_numbers_in_fp8_have_one_byte() -> None:
    assert TensorSpec("w", (3, 5), "float8_e4m3fn").nbytes == 15
