"""Which layer and which attention a model gets."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Literal

import pytest
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch.nn.functional import silu

from rljob_api.sizing.families import FAMILIES
from rljob_api.sizing.latent import Latent
from rljob_trainer.learners.rank.attention.fused_attention import FusedAttention
from rljob_trainer.learners.rank.experts.experts import BiasedRouter, RoutedLayer, Router
from rljob_trainer.learners.rank.experts.grouped_experts import GroupedExperts
from rljob_trainer.learners.rank.model.fused_layer import FusedLayer
from rljob_trainer.learners.rank.model.latent_attention import LatentAttention
from rljob_trainer.learners.rank.model.model import _layer_spec
from rljob_trainer.learners.rank.model.norm import CentredNorm
from rljob_trainer.learners.rank.model.post_norms import (
    CentredAttention,
    CentredMlp,
    CentredOutputNorm,
    NormedAttention,
    NormedMlp,
)


@pytest.mark.parametrize(
    ("device", "granularity", "modules", "layer", "attention"),
    [
        ("cpu", None, [], TransformerLayer, SelfAttention),
        ("cuda", None, [], FusedLayer, FusedAttention),
        ("cuda", "full", ["core_attn"], FusedLayer, FusedAttention),
        ("cuda", "selective", ["mlp"], TransformerLayer, FusedAttention),
        ("cuda", "selective", ["core_attn"], TransformerLayer, SelfAttention),
    ],
)
def test_gpus_have_the_fused_layers_unless_megatron_computes_a_part_of_them_again(
    device: Literal["cpu", "cuda"],
    granularity: str | None,
    modules: list[str],
    layer: type[TransformerLayer],
    attention: type[SelfAttention],
) -> None:
    config = settings(recompute_granularity=granularity, recompute_modules=modules)
    spec = _layer_spec(config, FAMILIES["Qwen3ForCausalLM"], device)
    assert (spec.module, spec.submodules.self_attention.module) == (layer, attention)


def test_experts_are_not_in_a_fused_layer() -> None:
    spec = _layer_spec(settings(num_moe_experts=4), FAMILIES["Qwen3MoeForCausalLM"], "cuda")
    assert (spec.module, spec.submodules.self_attention.module) == (RoutedLayer, FusedAttention)


@pytest.mark.parametrize(
    ("device", "width", "experts"),
    [("cuda", 16, GroupedExperts), ("cuda", 12, SequentialMLP), ("cpu", 16, SequentialMLP)],
)
def test_a_gpu_computes_all_experts_in_one_product_if_it_can(
    device: Literal["cpu", "cuda"], width: int, experts: type[SequentialMLP]
) -> None:
    config = settings(num_moe_experts=4, moe_ffn_hidden_size=width)
    spec = _layer_spec(config, FAMILIES["Qwen3MoeForCausalLM"], device)
    assert spec.submodules.mlp.submodules.experts.module is experts


@pytest.mark.parametrize(
    ("dense", "layer", "router"), [(False, RoutedLayer, BiasedRouter), (True, TransformerLayer, None)]
)
def test_first_layers_have_no_experts_and_a_part_of_a_head_keeps_attention_from_being_fused(
    dense: bool, layer: type[TransformerLayer], router: type[Router] | None
) -> None:
    spec = _layer_spec(settings(num_moe_experts=4), FAMILIES["Glm4MoeForCausalLM"], "cuda", dense=dense)
    assert (spec.module, spec.submodules.self_attention.module) == (layer, SelfAttention)
    assert getattr(spec.submodules.mlp.submodules, "router", None) is router


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("dense", "layer"), [(False, RoutedLayer), (True, TransformerLayer)])
def test_latent_attention_is_a_module_of_its_own_on_every_device(
    device: Literal["cpu", "cuda"], dense: bool, layer: type[TransformerLayer]
) -> None:
    latent, config = Latent(4, 24, 32, 16, 8, 12), settings(num_moe_experts=4, qk_layernorm=False)
    spec = _layer_spec(config, FAMILIES["DeepseekV3ForCausalLM"], device, dense=dense, latent=latent)
    attention = spec.submodules.self_attention
    assert (spec.module, attention.module, attention.params) == (layer, LatentAttention, {"latent": latent})


def test_routers_without_a_bias_are_plain() -> None:
    spec = _layer_spec(settings(num_moe_experts=4), FAMILIES["MixtralForCausalLM"], "cpu")
    assert spec.submodules.mlp.submodules.router is Router


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_norms_of_outputs_and_turned_pairs_are_not_in_the_fused_layers(device: Literal["cpu", "cuda"]) -> None:
    spec = _layer_spec(settings(), FAMILIES["Glm4ForCausalLM"], device)
    assert spec.module == TransformerLayer
    assert (spec.submodules.self_attention.module, spec.submodules.mlp.module) == (NormedAttention, NormedMlp)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_layers_with_windows_are_not_fused_and_their_norms_multiply_by_1_and_weight(
    device: Literal["cpu", "cuda"],
) -> None:
    spec = _layer_spec(settings(), FAMILIES["Gemma3ForCausalLM"], device)
    layer, attention = spec.submodules, spec.submodules.self_attention
    assert (spec.module, attention.module, layer.mlp.module) == (TransformerLayer, CentredAttention, CentredMlp)
    norms = layer.input_layernorm, layer.pre_mlp_layernorm, attention.submodules.q_layernorm
    assert (*norms, attention.submodules.k_layernorm) == (CentredNorm,) * 4
    assert CentredAttention.norm is CentredMlp.norm is CentredOutputNorm


def test_windows_alone_keep_attention_from_being_fused() -> None:
    spec = _layer_spec(settings(), replace(FAMILIES["LlamaForCausalLM"], local_layers=True), "cuda")
    assert (spec.module, spec.submodules.self_attention.module) == (TransformerLayer, SelfAttention)


def test_turned_pairs_alone_keep_attention_from_being_fused() -> None:
    spec = _layer_spec(settings(), replace(FAMILIES["LlamaForCausalLM"], rope_pairs=True), "cuda")
    assert (spec.module, spec.submodules.self_attention.module) == (TransformerLayer, SelfAttention)


def settings(**changed: object) -> SimpleNamespace:
    """Return what decides on the layers, as Megatron's configuration has it."""
    usual = {"recompute_granularity": None, "recompute_modules": [], "num_moe_experts": None}
    usual |= {"gated_linear_unit": True, "activation_func": silu, "bias_activation_fusion": True}
    usual |= {"add_bias_linear": False, "moe_apply_probs_on_input": False, "expert_tensor_parallel_size": 1}
    usual |= {"hidden_size": 64, "moe_ffn_hidden_size": 16}
    return SimpleNamespace(**{"qk_layernorm": True, **usual, **changed})
