"""Which attention a layer gets."""

from types import SimpleNamespace
from typing import Literal

import pytest
from megatron.core.transformer.attention import SelfAttention

from rljob_trainer.learners.fused_attention import FusedAttention
from rljob_trainer.learners.model import _layer_spec


@pytest.mark.parametrize(
    ("device", "granularity", "modules", "expected"),
    [
        ("cpu", None, [], SelfAttention),
        ("cuda", None, [], FusedAttention),
        ("cuda", "full", ["core_attn"], FusedAttention),
        ("cuda", "selective", ["mlp"], FusedAttention),
        ("cuda", "selective", ["core_attn"], SelfAttention),
    ],
)
def test_gpus_have_the_fused_attention_unless_megatron_computes_it_again(
    device: Literal["cpu", "cuda"], granularity: str | None, modules: list[str], expected: type[SelfAttention]
) -> None:
    config = SimpleNamespace(qk_layernorm=True, recompute_granularity=granularity, recompute_modules=modules)
    assert _layer_spec(config, device).submodules.self_attention.module is expected
