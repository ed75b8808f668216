"""Attention and MLP whose output is normed before it is added to the residual: GLM-4 has four norms in a layer."""

from typing import Any

import torch
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.mlp import MLP

from rljob_trainer.learners.norm import RmsNorm


class NormedAttention(SelfAttention):
    """Megatron's attention, and the norm of its output."""

    def __init__(self, config: Any, *args: Any, **named: Any) -> None:
        super().__init__(config, *args, **named)
        self.output_layernorm = RmsNorm(config, config.hidden_size, config.layernorm_epsilon)

    def forward(self, *args: Any, **named: Any) -> tuple[torch.Tensor, None]:
        """Return [N, 1, hidden]; no model of ours has a bias that is added later."""
        output, _bias = super().forward(*args, **named)
        return self.output_layernorm(output), None


class NormedMlp(MLP):
    """Megatron's MLP, and the norm of its output."""

    def __init__(self, config: Any, *args: Any, **named: Any) -> None:
        super().__init__(config, *args, **named)
        self.output_layernorm = RmsNorm(config, config.hidden_size, config.layernorm_epsilon)

    def forward(self, *args: Any, **named: Any) -> tuple[torch.Tensor, None]:
        """Return [N, 1, hidden]."""
        output, _bias = super().forward(*args, **named)
        return self.output_layernorm(output), None
