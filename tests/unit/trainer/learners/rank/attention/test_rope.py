"""Rotary embedding, against transformers' own."""

from typing import Any

import pytest
import torch
from transformers import DeepseekV3Config, Gemma3TextConfig, Glm4Config, Glm4MoeConfig, LlamaConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb as deepseek_rotary
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave as interleaved_rotary
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.glm4.modeling_glm4 import Glm4RotaryEmbedding
from transformers.models.glm4.modeling_glm4 import apply_rotary_pos_emb as glm4_rotary
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeRotaryEmbedding
from transformers.models.glm4_moe.modeling_glm4_moe import apply_rotary_pos_emb as glm4_moe_rotary
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from rljob_api.sizing.families import GLOBAL, LOCAL
from rljob_trainer.learners.rank.attention.rope import Rope, rotate, rotate_pairs

KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 100000.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    },
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
}  # fmt: skip
YARN = KINDS["yarn"] | {"mscale": 1.0, "mscale_all_dim": 0.7}


@pytest.mark.parametrize("kind", KINDS)
def test_queries_and_gradients_turn_like_those_of_transformers(kind: str) -> None:
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=2, head_dim=32, max_position_embeddings=256, rope_parameters=KINDS[kind]
    )
    positions = torch.tensor([0, 1, 2, 0, 200, 17])
    x = torch.randn(6, 2, 32, requires_grad=True)
    ours = rotate(x, *Rope(config, 32, torch.device("cpu")).angles(positions))
    cos, sin = LlamaRotaryEmbedding(config)(x, positions[None])
    theirs, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
    assert_alike(x, ours, theirs[0].transpose(0, 1))


def test_pairs_of_a_part_of_each_head_turn_like_those_of_transformers() -> None:
    config = Glm4Config(hidden_size=64, num_attention_heads=2, head_dim=32, partial_rotary_factor=0.25)
    positions = torch.tensor([0, 1, 2, 0, 200, 17])
    x = torch.randn(6, 2, 32, requires_grad=True)
    rope = Rope(config, 32, torch.device("cpu"))
    assert rope.pairs
    ours = rotate_pairs(x, *rope.angles(positions))
    cos, sin = Glm4RotaryEmbedding(config)(x, positions[None])
    theirs, _ = glm4_rotary(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
    assert_alike(x, ours, theirs[0].transpose(0, 1))


def test_the_first_part_of_each_head_turns_like_that_of_transformers() -> None:
    config = Glm4MoeConfig(hidden_size=64, num_attention_heads=2, head_dim=32, partial_rotary_factor=0.25)
    positions = torch.tensor([0, 1, 2, 0, 200, 17])
    x = torch.randn(6, 2, 32, requires_grad=True)
    rope = Rope(config, 32, torch.device("cpu"))
    assert not rope.pairs
    ours = rotate(x, *rope.angles(positions))
    cos, sin = Glm4MoeRotaryEmbedding(config)(x, positions[None])
    theirs, _ = glm4_moe_rotary(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
    assert_alike(x, ours, theirs[0].transpose(0, 1))


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("scaling", [{}, YARN])
def test_the_turned_part_of_latent_attention_turns_like_that_of_transformers(
    pairs: bool, scaling: dict[str, Any]
) -> None:
    """Their pairs come out as halves; scores are those of ours."""
    config = DeepseekV3Config(
        qk_rope_head_dim=32, qk_nope_head_dim=16, max_position_embeddings=256, rope_interleave=pairs,
        rope_parameters={"rope_theta": 10_000.0, "rope_type": "default"} | scaling,
    )  # fmt: skip
    positions = torch.tensor([0, 1, 2, 0, 200, 17])
    queries, keys = torch.randn(2, 6, 2, 32)
    rope = Rope(config, config.head_dim, torch.device("cpu"))
    assert rope.pairs == pairs
    turn, angles = rotate_pairs if pairs else rotate, rope.angles(positions)
    ours = torch.einsum("nhd,mhd->hnm", turn(queries, *angles), turn(keys, *angles))
    theirs = interleaved_rotary if pairs else deepseek_rotary
    cos, sin = DeepseekV3RotaryEmbedding(config)(queries, positions[None])
    turned = theirs(*(x.transpose(0, 1)[None] for x in (queries, keys)), cos, sin)
    torch.testing.assert_close(ours, turned[0][0] @ turned[1][0].transpose(1, 2), rtol=0, atol=1e-4)


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 8.0}], ids=["default", "linear"])
def test_layers_with_a_window_turn_by_a_base_of_their_own_as_in_transformers(scaling: dict[str, Any] | None) -> None:
    config = Gemma3TextConfig(
        hidden_size=64, num_attention_heads=2, head_dim=32, rope_theta=1e6, rope_local_base_freq=300.0,
        rope_scaling=scaling,
    )  # fmt: skip
    positions = torch.tensor([0, 1, 2, 0, 200, 17])
    x = torch.randn(6, 2, 32, requires_grad=True)
    rope, theirs = Rope(config, 32, torch.device("cpu")), Gemma3RotaryEmbedding(config)
    for kind, angles in ((GLOBAL, rope.angles(positions)), (LOCAL, rope.local_angles(positions))):
        assert angles is not None
        cos, sin = theirs(x, positions[None], kind)
        turned, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
        assert_alike(x, rotate(x, *angles), turned[0].transpose(0, 1))


def test_families_whose_layers_are_alike_have_one_base() -> None:
    config = LlamaConfig(hidden_size=64, num_attention_heads=2, head_dim=32, rope_parameters=KINDS["default"])
    assert Rope(config, 32, torch.device("cpu")).local_angles(torch.tensor([0])) is None


def assert_alike(x: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Assert that two functions of x have the same values and gradients."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    upstream = torch.randn_like(x)
    torch.testing.assert_close(
        torch.autograd.grad(ours, x, upstream), torch.autograd.grad(theirs, x, upstream), rtol=0, atol=1e-5
    )
