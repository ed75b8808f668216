"""Triton kernels over the logits of a chunk: what `logprobs.py` needs of the softmax, in one pass over them.

PyTorch needs about eight passes over the fp32 logits forward and six backward, and the vocabulary is by far the widest
layer. Here the logits are read once, as the matrix product left them, and the gradient is written in their place. Sums
are in fp32. Without a GPU the kernels run in Triton's interpreter (`TRITON_INTERPRET=1`).

Axes: C rows of a chunk, V vocabulary.
"""

import torch
import triton
import triton.language as tl

_COLUMNS = 4096
"""columns that a program holds at a time"""


def statistics(
    logits_C_V: torch.Tensor, targets_C: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probabilities of the targets, log-sum-exp and entropies, fp32 [C] each, at the temperature."""
    rows, columns = logits_C_V.shape
    logprobs, lse, entropy = logits_C_V.new_empty(3, rows, dtype=torch.float32)
    if rows:
        _statistics[(rows,)](
            logits_C_V, targets_C, logprobs, lse, entropy, logits_C_V.stride(0), columns, 1 / temperature, _COLUMNS
        )
    return logprobs, lse, entropy


def gradient_(
    logits_C_V: torch.Tensor,
    targets_C: torch.Tensor,
    lse_C: torch.Tensor,
    entropy_C: torch.Tensor,
    grad_logprobs_C: torch.Tensor,
    grad_entropy_C: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """Overwrite the logits with the gradient that comes from log-probabilities and entropies, and return them."""
    rows, columns = logits_C_V.shape
    if rows:
        _gradient[(rows, triton.cdiv(columns, _COLUMNS))](
            logits_C_V,
            targets_C,
            lse_C,
            entropy_C,
            grad_logprobs_C.contiguous(),
            grad_entropy_C.contiguous(),
            logits_C_V.stride(0),
            columns,
            1 / temperature,
            _COLUMNS,
        )
    return logits_C_V


@triton.jit
def _statistics(  # type: ignore[no-untyped-def]
    logits, targets, logprobs, lse, entropy, stride, num_columns, sharpness, COLUMNS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, COLUMNS)
    largest = tl.full((COLUMNS,), -1e30, tl.float32)  # not infinity, whose difference to itself is not a number
    total = tl.zeros((COLUMNS,), tl.float32)  # of exp(x - largest), lane by lane
    weighted = tl.zeros(
        (COLUMNS,), tl.float32
    )  # of exp(x - largest) * (x - largest): small numbers, so entropies near 0 are exact
    for start in range(0, num_columns, COLUMNS):
        inside = start + lane < num_columns
        x = tl.load(logits + row * stride + start + lane, mask=inside, other=0.0).to(tl.float32) * sharpness
        larger = tl.where(inside, tl.maximum(largest, x), largest)
        x = tl.where(inside, x, larger)
        shrink = tl.exp(largest - larger)
        term = tl.where(inside, tl.exp(x - larger), 0.0)
        total_before = total
        total = total * shrink + term
        weighted = (weighted + total_before * (largest - larger)) * shrink + term * (x - larger)
        largest = larger
    top = tl.max(largest, 0)
    shrink = tl.exp(largest - top)
    total_all = tl.sum(total * shrink, 0)
    weighted_all = tl.sum((weighted + total * (largest - top)) * shrink, 0)
    log_sum = top + tl.log(total_all)
    target = tl.load(logits + row * stride + tl.load(targets + row)).to(tl.float32) * sharpness
    tl.store(lse + row, log_sum)
    tl.store(logprobs + row, target - log_sum)
    tl.store(entropy + row, tl.log(total_all) - weighted_all / total_all)


@triton.jit
def _gradient(  # type: ignore[no-untyped-def]
    logits, targets, lse, entropy, grad_logprobs, grad_entropy, stride, num_columns, sharpness, COLUMNS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < num_columns
    at = logits + row * stride + column
    log_p = tl.load(at, mask=inside, other=0.0).to(tl.float32) * sharpness - tl.load(lse + row)
    p = tl.exp(log_p)
    grad_logprob = tl.load(grad_logprobs + row)
    grad = -grad_logprob * p - tl.load(grad_entropy + row) * p * (log_p + tl.load(entropy + row))
    grad += tl.where(column == tl.load(targets + row), grad_logprob, 0.0)
    tl.store(at, (grad * sharpness).to(logits.dtype.element_ty), mask=inside)
