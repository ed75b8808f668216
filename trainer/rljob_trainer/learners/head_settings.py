"""How the output layer is taken: the part of the vocabulary, the temperature, the chunks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from rljob_trainer.learners.config import EntropyUse


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
