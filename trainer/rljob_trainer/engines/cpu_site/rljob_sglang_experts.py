"""The choice of experts in PyTorch, for SGLang on CPU.

SGLang 0.5.17 chooses by a kernel that is published for GPUs only. Goes when it chooses in PyTorch on CPUs, too.
"""

from typing import Any

import torch

# Axes: N tokens, E experts, K of them chosen.


def chosen(
    hidden_states: torch.Tensor,
    gating_output: torch.Tensor,
    topk: int,
    renormalize: bool,
    correction_bias: torch.Tensor | None = None,
    scoring_func: str = "softmax",
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand in for `fused_topk`: the weights [N, K] in fp32 and the numbers of each token's experts.

    Raises NotImplementedError for another score than softmax, which no model of ours has.
    """
    if scoring_func != "softmax" or correction_bias is not None:
        raise NotImplementedError(f"experts are chosen by softmax on CPU, not by {scoring_func} with a bias")
    weights_NK, experts_NK = gating_output.float().softmax(-1).topk(topk, dim=-1)
    if renormalize:
        weights_NK = weights_NK / weights_NK.sum(-1, keepdim=True)
    return weights_NK, experts_NK.int()
