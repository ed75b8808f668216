"""Attention of many short sequences in one call, for SGLang's `torch_native` backend.

SGLang 0.5.17 calls PyTorch once for each sequence and layer: with 128 sequences of 30 tokens in a model of 30 layers
that is two thirds of a decoding step. Here the sequences are padded to the longest and masked, and the call is one.

Axes: N query tokens of all sequences, S sequences, Q longest query, K longest sequence, H heads, D head size.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

MOST_CELLS = 2**22
"""of S * Q * K: what is larger gains nothing from padding, and takes memory"""

Original = Callable[..., torch.Tensor]


def extend(
    original: Original,
    backend: Any,
    query_NHD: torch.Tensor,
    output_NHD: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
    is_cross_attn: bool = False,
    sliding_window_size: int | None = None,
) -> torch.Tensor:
    """Stand in for `_run_sdpa_forward_extend`: new tokens see those before them in their sequence, and themselves."""
    cells = len(seq_lens) * int(extend_seq_lens.max()) * int(seq_lens.max())
    if cells > MOST_CELLS or not causal or encoder_lens is not None or sliding_window_size is not None:
        return original(
            backend,
            query_NHD,
            output_NHD,
            keys,
            values,
            req_to_token,
            req_pool_indices,
            seq_lens,
            extend_prefix_lens,
            extend_seq_lens,
            encoder_lens,
            scaling=scaling,
            enable_gqa=enable_gqa,
            causal=causal,
            is_cross_attn=is_cross_attn,
            sliding_window_size=sliding_window_size,
        )
    slots_SK = _slots(req_to_token, req_pool_indices, seq_lens)
    attend(query_NHD, output_NHD, keys, values, slots_SK, extend_prefix_lens, extend_seq_lens, scaling, enable_gqa)
    return output_NHD


def decode(
    original: Original,
    backend: Any,
    query_NHD: torch.Tensor,
    output_NHD: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
    is_cross_attn: bool = False,
    sliding_window_size: int | None = None,
) -> torch.Tensor:
    """Stand in for `_run_sdpa_forward_decode`: one new token for each sequence, the last one, sees all of it."""
    if len(seq_lens) * int(seq_lens.max()) > MOST_CELLS or encoder_lens is not None or sliding_window_size is not None:
        return original(
            backend,
            query_NHD,
            output_NHD,
            keys,
            values,
            req_to_token,
            req_pool_indices,
            seq_lens,
            encoder_lens,
            scaling=scaling,
            enable_gqa=enable_gqa,
            causal=causal,
            is_cross_attn=is_cross_attn,
            sliding_window_size=sliding_window_size,
        )
    slots_SK = _slots(req_to_token, req_pool_indices, seq_lens)
    one = torch.ones_like(seq_lens)
    attend(query_NHD, output_NHD, keys, values, slots_SK, seq_lens - 1, one, scaling, enable_gqa)
    return output_NHD


def attend(
    query_NHD: torch.Tensor,
    output_NHD: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots_SK: torch.Tensor,
    prefix_S: torch.Tensor,
    new_S: torch.Tensor,
    scaling: float | None,
    enable_gqa: bool,
) -> None:
    """Write the attention of the new tokens into `output_NHD`; `slots_SK` are the places of all tokens in the cache."""
    sequences, longest = slots_SK.shape
    most_new = int(new_S.max())
    position_Q, position_K = torch.arange(most_new), torch.arange(longest)
    is_new_SQ = position_Q < new_S[:, None]
    sees_SQK = position_K <= (prefix_S[:, None] + position_Q)[:, :, None]
    padded_SQHD = query_NHD.new_zeros((sequences, most_new, *query_NHD.shape[1:]))
    padded_SQHD[is_new_SQ] = query_NHD
    attended_SHQD = scaled_dot_product_attention(
        padded_SQHD.transpose(1, 2),
        keys[slots_SK].transpose(1, 2).to(query_NHD.dtype),
        values[slots_SK].transpose(1, 2).to(query_NHD.dtype),
        attn_mask=sees_SQK[:, None],
        scale=scaling,
        enable_gqa=enable_gqa,
    )
    output_NHD.copy_(attended_SHQD.transpose(1, 2)[is_new_SQ])


def _slots(req_to_token: torch.Tensor, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
    """Return the cache's places of all tokens; behind the end of a sequence the padding slot 0, which is never NaN."""
    longest = int(seq_lens.max())
    slots_SK = req_to_token[req_pool_indices, :longest].long()
    return slots_SK.masked_fill(torch.arange(longest) >= seq_lens[:, None], 0)
