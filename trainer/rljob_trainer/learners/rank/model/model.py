"""Megatron's GPTModel as the policy, ending in the hidden states that the loss needs, and as a critic."""

from typing import Any, Literal, TypeVar
from unittest.mock import patch

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import (
    gather_from_sequence_parallel_region,
    layers,
    set_defaults_if_not_set_tensor_model_parallel_attributes,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from rljob_api.sizing.families import Family
from rljob_api.sizing.latent import Latent
from rljob_trainer.learners.rank.attention.attention import PackedAttention, PackedTokens, recomputes_attention
from rljob_trainer.learners.rank.experts.experts import (
    BiasedRouter,
    ExpertLayer,
    RoutedLayer,
    Router,
    expert_parameters,
)
from rljob_trainer.learners.rank.experts.grouped_experts import GroupedExperts, can_group
from rljob_trainer.learners.rank.model.embedding import embed
from rljob_trainer.learners.rank.model.latent_attention import LatentAttention
from rljob_trainer.learners.rank.model.norm import CentredNorm, RmsNorm
from rljob_trainer.learners.rank.model.post_norms import CentredAttention, CentredMlp, NormedAttention, NormedMlp


class PolicyModel(GPTModel):
    """GPTModel whose last stage returns hidden states [R, hidden] instead of logits of every token.

    The vocabulary is by far the widest layer, and only response tokens need it; `head/logprobs.py` projects in chunks.
    """

    embedding_scale: float | None = None
    """what embeddings are multiplied by before the first layer"""

    def forward(self, tokens: torch.Tensor, packed: PackedTokens) -> torch.Tensor:
        """Return hidden states: of what `packed` asks for on the last stage, else of all `tokens` [N], or, if tensor
        ranks share them out, of this rank's."""
        hidden = None
        if self.pre_process:
            words = self.embedding.word_embeddings
            shared = self.config.sequence_parallel
            hidden = embed(tokens, words.weight, words.vocab_start_index, shared=shared)[:, None]
            if self.embedding_scale is not None:
                hidden = hidden * self.embedding_scale
        return super().forward(
            input_ids=None,
            position_ids=None,
            attention_mask=None,
            decoder_input=hidden,
            packed_seq_params=packed,
        )

    def _postprocess(self, hidden_states: torch.Tensor, packed_seq_params: PackedTokens, **_: Any) -> torch.Tensor:
        if not self.post_process:
            return hidden_states
        assert packed_seq_params.positions_R is not None
        if self.config.sequence_parallel:  # all ranks have the same gradient of what follows, and keep their share
            hidden_states = gather_from_sequence_parallel_region(hidden_states, tensor_parallel_output_grad=False)
        return hidden_states.squeeze(1).index_select(0, packed_seq_params.positions_R)

    @property
    def head_weight(self) -> torch.nn.Parameter:
        """This rank's rows of the output projection [V / tensor parallel, hidden]; only on the last stage."""
        tied = self.share_embeddings_and_output_weights and self.pre_process
        return self.shared_embedding_or_output_weight() if tied else self.output_layer.weight


class ValueHead(torch.nn.Module):
    """One number for a hidden state, on every tensor-parallel rank the same. Zero at first: the rewards say it all."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, config.hidden_size, dtype=config.params_dtype))

    def forward(self, hidden_R_H: torch.Tensor) -> torch.Tensor:
        """Return fp32 values [R]; in bf16 neighbours are 0.4 % apart, and advantages are differences of values."""
        return F.linear(hidden_R_H.float(), self.weight.float()).squeeze(1)


class ValueModel(PolicyModel):
    """The same model with a value head where the policy projects onto the vocabulary; its last stage returns [R]."""

    output_layer: Any
    """the head; None on other stages, and before there is one"""

    def __init__(self, *, config: Any, **arguments: Any) -> None:
        super().__init__(config=config, **arguments | {"share_embeddings_and_output_weights": False})
        self.output_layer = None

    def add_head(self) -> None:
        """Put the head on the last stage; after the checkpoint's weights are in, for it has none."""
        if self.post_process:
            self.output_layer = ValueHead(self.config)
            set_defaults_if_not_set_tensor_model_parallel_attributes(self.output_layer.weight)

    def _postprocess(self, hidden_states: torch.Tensor, packed_seq_params: PackedTokens, **_: Any) -> torch.Tensor:
        hidden = super()._postprocess(hidden_states, packed_seq_params)
        if not self.post_process:
            return hidden
        values_R: torch.Tensor = self.output_layer(hidden)
        return values_R


Model = TypeVar("Model", bound=PolicyModel)


def build_chunks(bridge: Any, kind: type[Model], device: Literal["cpu", "cuda"] = "cpu") -> list[Model]:
    """Return this rank's chunks of a model that will run on `device`: still on the CPU, their weights not loaded yet.

    A rank has one chunk, or with virtual pipeline stages several, whose layers are not neighbours.
    """
    number = bridge.config.virtual_pipeline_model_parallel_size
    return [_chunk(bridge, kind, device, place) for place in ([None] if number is None else range(number))]


def _chunk(bridge: Any, kind: type[Model], device: Literal["cpu", "cuda"], place: int | None) -> Model:
    """Return the chunk at a place among those of this rank; None: it is the only one."""
    config, hf_config = bridge.config, bridge.hf_config
    first = get_transformer_layer_offset(config, place)
    numbers = range(first, first + get_num_layers_to_build(config, place))
    model, family = bridge.shape, bridge.shape.family
    of_stage = [_layer_spec(config, family, device, dense=n < model.dense_layers, latent=model.latent) for n in numbers]
    norm = CentredNorm if family.centred_norms else RmsNorm
    with patch.object(layers, "_initialize_affine_weight_cpu", _mark_parallel):
        built = kind(
            config=config,
            transformer_layer_spec=TransformerBlockSubmodules(layer_specs=of_stage, layer_norm=norm),
            vocab_size=bridge.padded_vocab_size,
            max_sequence_length=hf_config.max_position_embeddings,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=place),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=place),
            share_embeddings_and_output_weights=hf_config.tie_word_embeddings,
            position_embedding_type="none",  # PackedAttention turns queries and keys
            vp_stage=place,
        )
    if family.scaled_embedding:  # rounded like the weights, as transformers does
        built.embedding_scale = torch.tensor(config.hidden_size**0.5, dtype=config.params_dtype).item()
    for parameter in expert_parameters(built):
        parameter.allreduce = False  # Megatron says so only where experts are shared out
    for parameter in built.parameters():
        set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    return built


def _mark_parallel(
    weight: torch.Tensor,
    _whole: int,
    _inner: int,
    _own: int,
    dimension: int,
    _init: object,
    stride: int = 1,
    **_: object,
) -> None:
    """Do what Megatron does beside making a random weight of all ranks, of which it copies this rank's part."""
    set_tensor_model_parallel_attributes(weight, is_parallel=True, dim=dimension, stride=stride)


def _layer_spec(
    config: Any,
    family: Family,
    device: Literal["cpu", "cuda"],
    *,
    dense: bool = False,
    latent: Latent | None = None,
) -> Any:
    """Return Megatron's plain layer with our attention and norms; `dense`: without experts."""
    experts = None if dense else config.num_moe_experts
    spec = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=config.qk_layernorm, num_experts=experts)
    layer, attention = spec.submodules, spec.submodules.self_attention.submodules
    norm = CentredNorm if family.centred_norms else RmsNorm
    layer.input_layernorm = layer.pre_mlp_layernorm = norm
    attention.core_attention = PackedAttention
    if experts:
        router = BiasedRouter if family.router_bias else Router
        spec.module, layer.mlp.module, layer.mlp.submodules.router = RoutedLayer, ExpertLayer, router
        if device == "cuda" and can_group(config):
            layer.mlp.submodules.experts.module = GroupedExperts
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = norm
    if latent is not None:
        layer.self_attention = ModuleSpec(LatentAttention, params={"latent": latent})
    if family.post_norms:
        centred = family.centred_norms
        layer.self_attention.module = CentredAttention if centred else NormedAttention
        layer.mlp.module = CentredMlp if centred else NormedMlp
    turned_whole = not (family.rope_pairs or family.rope_part)
    plain = turned_whole and not (family.post_norms or family.latent or family.local_layers)
    if device == "cuda" and plain and not recomputes_attention(config):
        from rljob_trainer.learners.rank.attention.fused_attention import FusedAttention  # Triton is slow to import
        from rljob_trainer.learners.rank.model.fused_layer import FusedLayer

        layer.self_attention.module = FusedAttention
        if config.recompute_granularity != "selective" and not experts:
            spec.module = FusedLayer
    return spec
