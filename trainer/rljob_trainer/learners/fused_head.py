"""The output layer on GPUs: `logprobs.py` with the kernels of `token_statistics.py`, where one rank has all tokens.

One chunk of logits is alive at a time, in the precision of the weights, and becomes its own gradient.
"""

from typing import Any

import torch

from rljob_trainer.learners.head_settings import HeadSettings, projection_gradients
from rljob_trainer.learners.matrices import matmul
from rljob_trainer.learners.token_statistics import gradient_, statistics


class FusedHead(torch.autograd.Function):
    """Computes every chunk again for the backward pass."""

    chunk_bytes = 2**30
    """of fp32 logits, of which it has none: half of it in bf16, and large products add up their gradients less often"""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, settings: HeadSettings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, lse, entropy = hidden.new_zeros(3, len(hidden), dtype=torch.float32)
        for rows in settings.chunks(len(hidden)):
            logits = matmul(hidden[rows], weight[: settings.shard.size].t())
            logprobs[rows], lse[rows], entropy[rows] = statistics(logits, targets[rows], settings.temperature)
        ctx.save_for_backward(hidden, weight, targets, lse, entropy)
        ctx.settings = settings
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
            return gradient_(
                matmul(hidden[rows], weight[: settings.shard.size].t()),
                targets[rows],
                lse[rows],
                entropy[rows],
                grad_logprobs[rows],
                grad_entropy[rows],
                settings.temperature,
            )

        return *projection_gradients(hidden, weight, ctx.main_grad, settings, grad_logits), None, None
