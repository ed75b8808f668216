"""How the output layer is taken: the part of the vocabulary, the temperature, the chunks; and its backward pass."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from rljob_trainer.learners.config import EntropyUse
from rljob_trainer.learners.rank.replacements import wgrad
from rljob_trainer.learners.rank.replacements.matrices import matmul


@dataclass(frozen=True, slots=True)
class VocabularyShard:
    """This rank's part of the vocabulary."""

    start: int
    """first token of the part"""
    size: int
    """tokens in it, without those that only pad the vocabulary"""
    group: dist.ProcessGroup | None
    """the ranks that hold the other parts; None: there are none"""

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return self._reduced(x, dist.ReduceOp.SUM)

    def max(self, x: torch.Tensor) -> torch.Tensor:
        return self._reduced(x, dist.ReduceOp.MAX)

    def _reduced(self, x: torch.Tensor, operation: Any) -> torch.Tensor:
        if self.group is not None:
            dist.all_reduce(x, op=operation, group=self.group)
        return x


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """How the output layer is taken: the same for all its chunks."""

    shard: VocabularyShard
    temperature: float
    entropy: EntropyUse
    rows: int
    trains: bool
    """whether a backward pass may follow"""

    def chunks(self, num_rows: int) -> Iterator[slice]:
        return (slice(start, start + self.rows) for start in range(0, num_rows, self.rows))


def projection_gradients(
    hidden_R_H: torch.Tensor,
    weight_V_H: torch.Tensor,
    main_grad: torch.Tensor | None,
    settings: HeadSettings,
    grad_logits: Callable[[slice], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of hidden states and weight; the weight's is None where it was added to `main_grad`.

    `grad_logits` returns that of the logits [C, V] of a chunk's rows, in the weight's precision.
    """
    total = torch.zeros_like(weight_V_H, dtype=torch.float32) if main_grad is None else main_grad
    used = weight_V_H[: settings.shard.size]
    grad_hidden = torch.empty_like(hidden_R_H)
    for rows in settings.chunks(len(hidden_R_H)):
        grad = grad_logits(rows)
        grad_hidden[rows] = matmul(grad, used)
        wgrad.accumulate(hidden_R_H[rows], grad, total[: settings.shard.size])
    settings.shard.sum(grad_hidden)
    return grad_hidden, (total.to(weight_V_H.dtype) if main_grad is None else None)
