"""The output layer on GPUs: `logprobs.py` with the kernels of `token_statistics.py`, where one rank has all tokens.

Logits are made in chunks, in the precision of the weights, and become their own gradient. The chunks for which there is
room are kept for the backward pass, which follows the loss at once; the others are computed again. A gradient computed
in the forward pass would save as much, but only for objectives without a term over whole sequences.
"""

from typing import Any

import torch

from rljob_trainer.learners.rank.head.head_settings import HeadSettings, projection_gradients
from rljob_trainer.learners.rank.head.token_statistics import gradient_, statistics
from rljob_trainer.learners.rank.replacements.matrices import matmul


class FusedHead(torch.autograd.Function):
    """Keeps as many chunks as `kept_bytes` for the backward pass, and computes the others again."""

    kept_share = 1 / 16
    """of a GPU's memory: 5 GB on an H100, all logits of 16,384 tokens with a vocabulary of 152 thousand"""
    chunk_bytes = 2**30
    """of fp32 logits, of which it has none: half of it in bf16, and large products add up their gradients less often"""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, settings: HeadSettings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, lse, entropy = hidden.new_zeros(3, len(hidden), dtype=torch.float32)
        room = _kept_bytes(hidden.device) if settings.trains else 0
        kept: dict[int, torch.Tensor] = {}
        for rows in settings.chunks(len(hidden)):
            logits = matmul(hidden[rows], weight[: settings.shard.size].t())
            logprobs[rows], lse[rows], entropy[rows] = statistics(logits, targets[rows], settings.temperature)
            if logits.nbytes <= room:
                kept[rows.start] = logits
                room -= logits.nbytes
        ctx.save_for_backward(hidden, weight, targets, lse, entropy)
        ctx.settings, ctx.kept = settings, kept
        ctx.main_grad = getattr(weight, "main_grad", None)
        return logprobs, torch.zeros_like(entropy) if settings.entropy == "none" else entropy.clone()

    @staticmethod
    def backward(
        ctx: Any, grad_logprobs: torch.Tensor, grad_entropy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        hidden, weight, targets, lse, entropy = ctx.saved_tensors
        settings: HeadSettings = ctx.settings
        if settings.entropy != "differentiated":
            grad_entropy = torch.zeros_like(entropy)

        def grad_logits(rows: slice) -> torch.Tensor:
            logits = ctx.kept.pop(rows.start, None)
            return gradient_(
                matmul(hidden[rows], weight[: settings.shard.size].t()) if logits is None else logits,
                targets[rows],
                lse[rows],
                entropy[rows],
                grad_logprobs[rows],
                grad_entropy[rows],
                settings.temperature,
            )

        return *projection_gradients(hidden, weight, ctx.main_grad, settings, grad_logits), None, None


def _kept_bytes(device: torch.device) -> int:
    """Return how many bytes of logits may be kept on a device."""
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 2**32
    return int(memory * FusedHead.kept_share)
