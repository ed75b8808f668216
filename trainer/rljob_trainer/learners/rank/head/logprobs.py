"""Log-probabilities and entropies of response tokens, from hidden states, without logits of the whole micro-batch.

The projection onto the vocabulary, the softmax and their gradients are computed in chunks of rows, so that one chunk of
fp32 logits is alive at a time. The vocabulary may be spread over tensor-parallel ranks; rows that only pad it are left
out. Temperature is part of it: these are the log-probabilities of the distribution that the engine sampled from.

Axes: R response tokens, C of them in a chunk, V this rank's part of the vocabulary, H hidden.
"""

from typing import Any

import torch

from rljob_trainer.learners.config import EntropyUse
from rljob_trainer.learners.rank.head.head_settings import HeadSettings, VocabularyShard, projection_gradients
from rljob_trainer.learners.rank.replacements.matrices import matmul


def logprobs_and_entropy(
    hidden_R_H: torch.Tensor,
    weight_V_H: torch.Tensor,
    targets_R: torch.Tensor,
    shard: VocabularyShard,
    *,
    temperature: float = 1.0,
    entropy: EntropyUse = "none",
    chunk_rows: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return fp32 log-probabilities [R] of the targets and entropies [R] (zeros for "none", without a
    gradient for "measured"), equal on all ranks.

    The weight's gradient is added to `weight.main_grad` where Megatron has put one, else returned by autograd.
    """
    head = _head(hidden_R_H, shard)
    rows = chunk_rows or max(1, head.chunk_bytes // (4 * shard.size))
    settings = HeadSettings(shard, temperature, entropy, rows, torch.is_grad_enabled())
    logprobs_R, entropy_R = head.apply(hidden_R_H, weight_V_H, targets_R, settings)
    return logprobs_R, entropy_R


def _head(hidden_R_H: torch.Tensor, shard: VocabularyShard) -> Any:
    """Return the function for the device; the ranks that share a vocabulary have to exchange sums in between."""
    if hidden_R_H.is_cuda and shard.group is None:
        from rljob_trainer.learners.rank.head.fused_head import FusedHead  # Triton is slow to import

        return FusedHead
    return _Head


class _Head(torch.autograd.Function):
    """A single chunk keeps its probabilities for the backward pass; several are computed again, one by one."""

    chunk_bytes = 256 * 2**20
    """of fp32 logits"""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, settings: HeadSettings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = hidden.new_empty(len(hidden), dtype=torch.float32)
        lse, entropy = torch.empty_like(logprobs), torch.zeros_like(logprobs)
        ctx.probabilities = None
        for rows in settings.chunks(len(hidden)):
            logits = _logits(hidden[rows], weight, settings)
            lse[rows] = _log_sum_exp(logits, settings.shard)
            logprobs[rows] = _target_logits(logits, targets[rows], settings.shard) - lse[rows]
            single = settings.trains and rows.stop >= len(hidden) and rows.start == 0
            if settings.entropy == "none" and not single:
                continue
            p = torch.exp(logits.sub_(lse[rows, None]))
            if settings.entropy != "none":
                entropy[rows] = settings.shard.sum(-logits.mul_(p).sum(1))
            ctx.probabilities = p if single else None
        ctx.save_for_backward(hidden, weight, targets, lse, entropy)
        ctx.settings = settings
        ctx.main_grad = getattr(weight, "main_grad", None)
        return logprobs, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs: torch.Tensor, grad_entropy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        hidden, weight, targets, lse, entropy = ctx.saved_tensors
        settings: HeadSettings = ctx.settings

        def grad_logits(rows: slice) -> torch.Tensor:
            p, ctx.probabilities = ctx.probabilities, None
            if p is None:
                p = _logits(hidden[rows], weight, settings).sub_(lse[rows, None]).exp_()
            grad = _grad_logits(p, targets[rows], grad_logprobs[rows], grad_entropy[rows], entropy[rows], settings)
            return grad.to(weight.dtype)

        return *projection_gradients(hidden, weight, ctx.main_grad, settings, grad_logits), None, None


def _logits(hidden_C_H: torch.Tensor, weight_V_H: torch.Tensor, settings: HeadSettings) -> torch.Tensor:
    logits = matmul(hidden_C_H, weight_V_H[: settings.shard.size].t()).float()
    return logits if settings.temperature == 1.0 else logits.div_(settings.temperature)


def _log_sum_exp(logits_C_V: torch.Tensor, shard: VocabularyShard) -> torch.Tensor:
    lse = logits_C_V.logsumexp(1)
    if shard.group is None:
        return lse
    largest = shard.max(lse.clone())
    return shard.sum((lse - largest).exp_()).log_().add_(largest)


def _target_logits(logits_C_V: torch.Tensor, targets_C: torch.Tensor, shard: VocabularyShard) -> torch.Tensor:
    index, ours = _own(targets_C, shard)
    return shard.sum(logits_C_V.gather(1, index[:, None]).squeeze(1).mul_(ours))


def _grad_logits(
    p_C_V: torch.Tensor,
    targets_C: torch.Tensor,
    grad_logprobs_C: torch.Tensor,
    grad_entropy_C: torch.Tensor,
    entropy_C: torch.Tensor,
    settings: HeadSettings,
) -> torch.Tensor:
    """d logprob / d logit = [is target] - p; d entropy / d logit = -p log p - p * entropy. Overwrites `p_C_V`."""
    index, ours = _own(targets_C, settings.shard)
    if settings.entropy == "differentiated":
        from_entropy = (
            torch.special.entr(p_C_V).addcmul_(p_C_V, entropy_C[:, None], value=-1).mul_(grad_entropy_C[:, None])
        )
    grad = p_C_V.mul_(-grad_logprobs_C[:, None])
    grad.scatter_add_(1, index[:, None], (grad_logprobs_C * ours)[:, None])
    if settings.entropy == "differentiated":
        grad.add_(from_entropy)
    return grad if settings.temperature == 1.0 else grad.div_(settings.temperature)


def _own(targets_C: torch.Tensor, shard: VocabularyShard) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the targets as this rank's rows, 0 where another rank holds them, and whether it does [1.0 or 0.0]."""
    index = targets_C - shard.start
    ours = (index >= 0) & (index < shard.size)
    return index.where(ours, 0), ours.float()
