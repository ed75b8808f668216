"""Token embeddings whose gradient goes straight into the gradient buffer.

Autograd would make a tensor as large as the whole vocabulary for it, mostly zeros, and add that to the buffer.

Axes: N tokens, V this rank's part of the vocabulary, H hidden.
"""

from typing import Any

import torch
from megatron.core.tensor_parallel import (
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)


def embed(tokens_N: torch.Tensor, weight_V_H: torch.Tensor, start: int, *, shared: bool = False) -> torch.Tensor:
    """Return the embeddings [N, H], summed over the tensor-parallel ranks; `start` is this rank's first token.

    With `shared`, those of this rank's share of the tokens alone.
    """
    found = _Lookup.apply(weight_V_H, tokens_N - start)
    return (
        reduce_scatter_to_sequence_parallel_region(found) if shared else reduce_from_tensor_model_parallel_region(found)
    )


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ours = (index >= 0) & (index < len(weight))
        index = index.where(ours, 0)
        ctx.save_for_backward(index, ours)
        ctx.weight = weight
        return weight.index_select(0, index).mul_(ours[:, None])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        index, ours = ctx.saved_tensors
        weight, grad = ctx.weight, grad * ours[:, None]
        main_grad = getattr(weight, "main_grad", None)
        if main_grad is None:
            return torch.ops.aten.embedding_dense_backward(grad, index, len(weight), -1, False), None
        if main_grad.is_cuda:  # faster there, and always adds in the same order
            main_grad.add_(torch.ops.aten.embedding_dense_backward(grad, index, len(weight), -1, False))
        else:
            _add_rows(main_grad, index, grad)
        return None, None


def _add_rows(main_grad_V_H: torch.Tensor, index_N: torch.Tensor, grad_N_H: torch.Tensor) -> None:
    """Add rows in place, touching no others: `index_add_` on the whole takes seconds for a large vocabulary."""
    unique, place_N = index_N.unique(return_inverse=True)
    rows = main_grad_V_H.index_select(0, unique)
    rows.index_add_(0, place_N, grad_N_H.to(rows.dtype))
    main_grad_V_H.index_copy_(0, unique, rows)
