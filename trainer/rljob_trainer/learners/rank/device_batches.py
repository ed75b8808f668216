"""A data-parallel share's micro-batches as tensors on a rank's device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rljob_trainer.batches.packing import MicroBatch
from rljob_trainer.learners.rank.attention.attention import PackedTokens
from rljob_trainer.learners.rank.attention.flash import uploaded
from rljob_trainer.learners.rank.attention.layout import token_layout
from rljob_trainer.learners.rank.attention.rank_tokens import rank_tokens
from rljob_trainer.learners.rank.attention.rope import Rope
from rljob_trainer.learners.rank.experts.routers import RouterPass
from rljob_trainer.learners.rank.loss.loss import Targets

Logprobs_R = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Batches:
    """Micro-batches, each made when it is wanted: the host lays out the next while a GPU computes the last."""

    rope: Rope
    device: torch.device
    arguments: Sequence[tuple[Any, ...]]
    """of each `Batch`: the micro-batch, old and reference log-probabilities"""
    routers: RouterPass | None = None
    """None: routers, if there are any, only choose"""
    shares: int = 1
    """what the tokens of a micro-batch divide into"""

    def __len__(self) -> int:
        return len(self.arguments)

    def __iter__(self) -> Iterator["Batch"]:
        return map(self._batch, self.arguments)

    def _batch(self, arguments: tuple[Any, ...]) -> "Batch":
        batch, *logprobs = arguments
        made = Batch(batch, self.rope, self.device, self.shares, *logprobs)
        if self.routers is not None:
            made.packed.routing = self.routers.of(batch, made.part)
        return made


class Batch:
    """A micro-batch as tensors on the device."""

    def __init__(
        self,
        batch: MicroBatch,
        rope: Rope,
        device: torch.device,
        shares: int = 1,
        old_logprobs_R: Logprobs_R | None = None,
        reference_logprobs_R: Logprobs_R | None = None,
    ) -> None:
        def tensor(array: npt.NDArray[Any]) -> torch.Tensor:
            return uploaded(torch.from_numpy(array.copy()), device)  # arrays from Ray are read-only

        self.part = rank_tokens(token_layout(batch), device, shares)
        self.tokens_N = self.part.input(device)
        self.packed: PackedTokens = self.part.packed(rope, device)
        self.target_tokens_R = tensor(batch.targets_R)
        self.targets = Targets(
            advantages_R=tensor(batch.advantages_R),
            weights_R=tensor(batch.weights_R),
            sequences_R=tensor(batch.sequences_R),
            num_sequences=batch.num_sequences,
            engine_logprobs_R=tensor(batch.logprobs_R),
            old_logprobs_R=None if old_logprobs_R is None else tensor(old_logprobs_R),
            reference_logprobs_R=None if reference_logprobs_R is None else tensor(reference_logprobs_R),
        )
