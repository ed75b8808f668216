"""Linear layers and sampling at the speed of the processor, for SGLang on CPU.

PyTorch multiplies fp32 matrices with MKL, which on an AMD processor takes twice the time of oneDNN or more. For each
token that is sampled, `torch.multinomial` draws a random number for every word of the vocabulary.
docs/performance.md has the figures.
"""

from collections.abc import Callable
from typing import Any

import torch

SMALLEST = 2**18
"""numbers in a matrix from which on oneDNN pays: a kernel for each number of rows takes it a millisecond"""

# Axes: S sequences, V words of the vocabulary.


def linear(
    original: Callable[..., torch.Tensor],
    method: Any,
    layer: Any,
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Stand in for `UnquantizedLinearMethod.apply`: x @ weight.T + bias."""
    if not pays(x, layer.weight):
        return original(method, layer, x, bias)
    return product(x, layer.weight, bias)


def logits(
    original: Callable[..., torch.Tensor],
    processor: Any,
    hidden_states: torch.Tensor,
    lm_head: Any,
    embedding_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Stand in for `LogitsProcessor._compute_lm_head` of a plain matrix."""
    plain = hasattr(lm_head, "weight") and not hasattr(lm_head, "set_lora")
    if not plain or not pays(hidden_states, lm_head.weight):
        return original(processor, hidden_states, lm_head, embedding_bias)
    return product(hidden_states, lm_head.weight)


def pays(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether oneDNN multiplies the two faster."""
    large = bool(x.dtype == weight.dtype == torch.float32 and weight.numel() >= SMALLEST)
    return large and torch.backends.mkldnn.is_available()


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x @ weight.T + bias by oneDNN."""
    done: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return done


def sample(
    original: Callable[..., torch.Tensor],
    probs_SV: torch.Tensor,
    sampling_seed: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Stand in for `sampling_from_probs_torch`: the first word whose cumulative probability exceeds a random number.

    In fp64: sums of fp32 over a vocabulary would end short of 1, and never reach its last words.
    """
    if sampling_seed is not None:
        return original(probs_SV, sampling_seed, positions)
    sums_SV = probs_SV.cumsum(-1, dtype=torch.float64)
    chosen_S1 = torch.rand(len(sums_SV), 1, dtype=torch.float64) * sums_SV[:, -1:]
    words_S1 = torch.searchsorted(sums_SV, chosen_S1, right=True)
    return words_S1.clamp(max=sums_SV.shape[1] - 1).view(-1).to(torch.int32)  # the product may round up to the sum
