"""Attention and MLP whose output is normed before it is added to the residual: four norms in a layer, as in GLM-4."""

from typing import Any

import torch
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

from rljob_trainer.learners.rank.model.norm import CentredNorm, RmsNorm


class _Saved(RmsNorm):
    """Megatron's MLP takes every module of it to know how it is saved, as its own do."""

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        """Return what every rank has in full."""
        found: dict[str, Any] = make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True), prefix, {}, sharded_offsets
        )
        return found


class OutputNorm(_Saved):
    """The norm."""


class CentredOutputNorm(_Saved, CentredNorm):
    """The norm of families whose norms multiply by 1 + weight."""


class _NormedOutput(torch.nn.Module):
    """In front of a module of Megatron: the norm of its output."""

    norm: type[RmsNorm] = OutputNorm

    def __init__(self, config: Any, *args: Any, **named: Any) -> None:
        super().__init__(config, *args, **named)
        self.output_layernorm = self.norm(config, config.hidden_size, config.layernorm_epsilon)

    def forward(self, *args: Any, **named: Any) -> tuple[torch.Tensor, None]:
        """Return [N, 1, hidden]; no supported model has a bias that is added later."""
        output, _bias = super().forward(*args, **named)
        return self.output_layernorm(output), None


class NormedAttention(_NormedOutput, SelfAttention):
    """Megatron's attention, and the norm of its output."""


class NormedMlp(_NormedOutput, MLP):
    """Megatron's MLP, and the norm of its output."""


class CentredAttention(NormedAttention):
    """The same, with a norm by 1 + weight."""

    norm = CentredOutputNorm


class CentredMlp(NormedMlp):
    """The same, with a norm by 1 + weight."""

    norm = CentredOutputNorm
