"""The choice of experts in PyTorch, for SGLang on CPU.

SGLang 0.5.17 chooses by a kernel that is published for GPUs only. Goes when it chooses in PyTorch on CPUs, too.
"""

from typing import Any

import torch

# Axes: N tokens, E experts, K of them chosen, G groups of experts.


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

    Raises NotImplementedError for another score than softmax, which no supported model has.
    """
    if scoring_func != "softmax" or correction_bias is not None:
        raise NotImplementedError(f"experts are chosen by softmax on CPU, not by {scoring_func} with a bias")
    weights_NK, experts_NK = gating_output.float().softmax(-1).topk(topk, dim=-1)
    if renormalize:
        weights_NK = weights_NK / weights_NK.sum(-1, keepdim=True)
    return weights_NK, experts_NK.int()


def chosen_in_groups(
    hidden_states: torch.Tensor,
    gating_output: torch.Tensor,
    correction_bias: torch.Tensor,
    topk: int,
    renormalize: bool,
    num_expert_group: int = 1,
    topk_group: int = 1,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand in for `biased_grouped_topk`: score by sigmoid, choose by score and bias, in the best groups.

    Returns the same as `chosen`. SGLang scales the weights on a CPU when the experts have been computed.
    """
    scores_NE = gating_output.float().sigmoid()
    biased_NGE = (scores_NE + correction_bias).unflatten(-1, (num_expert_group, -1))
    best_NG = biased_NGE.topk(2, dim=-1).values.sum(-1).topk(topk_group, dim=-1).indices
    outside_NG = torch.ones_like(biased_NGE[..., 0], dtype=torch.bool).scatter(-1, best_NG, False)
    biased_NE = biased_NGE.masked_fill(outside_NG[..., None], float("-inf")).flatten(-2)
    experts_NK = biased_NE.topk(topk, dim=-1).indices
    weights_NK = scores_NE.gather(-1, experts_NK)
    if renormalize:
        weights_NK = weights_NK / weights_NK.sum(-1, keepdim=True)
    return weights_NK, experts_NK.int()


def plain_memory(cache: Any, num_tokens: int, num_layers: int, topk_size: int, name: str) -> None:
    """Stand in for `BaseHostCache.__init__`, which pins what the engine remembers of its choices."""
    cache.buffer = torch.zeros((num_tokens, num_layers, topk_size), dtype=torch.int32)
    cache.num_tokens, cache.num_layers, cache.topk_size, cache.name = num_tokens, num_layers, topk_size, name
    cache._log_allocation()
