"""The experts of a rank in one grouped matrix product, for GPUs.

Megatron's `SequentialMLP` runs one expert after the other, and with small experts a GPU mostly waits for the next
kernel; its `GroupedMLP` needs the package grouped_gemm. PyTorch has such a product, `grouped_mm`. The experts stay
separate modules, with the same names in checkpoints.

Axes: N tokens in the order of their experts, E experts, I inputs, O outputs.
"""

from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer import mlp
from megatron.core.transformer.moe.experts import SequentialMLP

ROW = 8
"""the length of a row of a matrix must be a multiple of this: 16 bytes [bf16 numbers]"""


def can_group(config: Any) -> bool:
    """Return whether experts of this `TransformerConfig` are gated by SiLU and weighted there, without biases, and have
    rows that the product can read."""
    gated = config.gated_linear_unit and config.activation_func is F.silu and config.bias_activation_fusion
    own = config.moe_ffn_hidden_size // (config.expert_tensor_parallel_size or 1)
    aligned = config.hidden_size % ROW == own % ROW == 0
    return bool(gated and aligned and not config.add_bias_linear and not config.moe_apply_probs_on_input)


class GroupedExperts(SequentialMLP):
    """Megatron's experts, with the same parameters; computes them at once. Only where `can_group`."""

    def forward(
        self, tokens_NI: torch.Tensor, tokens_per_expert: torch.Tensor, probs_N: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        """Return the experts' outputs [N, I], each times the router's weight of its token."""
        if len(tokens_NI) == 0:  # every weight takes part in the backward pass, so that its gradient is 0
            output, _bias = super().forward(tokens_NI, tokens_per_expert, probs_N)
            return output, None
        counts = tokens_per_expert.tolist()
        first = [expert.linear_fc1.weight for expert in self.local_experts]
        second = [expert.linear_fc2.weight for expert in self.local_experts]
        ends_E = torch.tensor(list(accumulate(counts)), dtype=torch.int32, device=tokens_NI.device)
        wide = _Products.apply(tokens_NI, counts, ends_E, *first)
        gated = mlp.weighted_bias_swiglu_impl(
            wide, None, probs_N.unsqueeze(-1), self.config.activation_func_fp8_input_store
        )
        return _Products.apply(gated, counts, ends_E, *second), None


class _Products(torch.autograd.Function):
    """Each expert's tokens times its weight [O, I]; the weights are copied side by side, and not kept so.

    `counts` are the tokens of each expert, and `ends_E` where they end, on the device: one copy serves all products.
    """

    @staticmethod
    def forward(
        ctx: Any, tokens_NI: torch.Tensor, counts: list[int], ends_E: torch.Tensor, *weights: torch.Tensor
    ) -> torch.Tensor:
        ctx.counts = counts
        ctx.save_for_backward(tokens_NI, ends_E, *weights)
        return F.grouped_mm(tokens_NI, torch.stack(weights).transpose(-2, -1), offs=ends_E)

    @staticmethod
    def backward(ctx: Any, grad_NO: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tokens_NI, ends_E, *weights = ctx.saved_tensors
        grad_NO = grad_NO.contiguous()
        grad_tokens_NI = F.grouped_mm(grad_NO, torch.stack(weights), offs=ends_E)
        grad_weights_EOI = F.grouped_mm(grad_NO.t(), tokens_NI, offs=ends_E)
        for expert, count in enumerate(ctx.counts):
            if count == 0:  # the kernel writes nothing there
                grad_weights_EOI[expert].zero_()
        return grad_tokens_NI, None, None, *grad_weights_EOI.unbind()
