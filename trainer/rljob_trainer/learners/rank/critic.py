"""The critic's part of one rank: a value model beside the policy, laid out like it, with its own optimizer.

Methods are collective, as those of `rank.py`, which owns it.
"""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch

from rljob_trainer.batches.packing import MicroBatch
from rljob_trainer.learners.config import CriticSettings, LearnerConfig
from rljob_trainer.learners.rank import schedule
from rljob_trainer.learners.rank.attention.layout import token_layout
from rljob_trainer.learners.rank.attention.rank_tokens import rank_tokens
from rljob_trainer.learners.rank.attention.rope import Rope
from rljob_trainer.learners.rank.loss.reduction import Sums, over_ranks
from rljob_trainer.learners.rank.loss.value_loss import Fit, value_loss
from rljob_trainer.learners.rank.model.model import ValueModel, build_chunks
from rljob_trainer.learners.rank.optimizer.optimizer import Optimizer, data_parallel
from rljob_trainer.learners.rank.weights.bridges import bridge
from rljob_trainer.metrics import OptimizerStep


class Critic:
    """Expects of each response token, from what comes before it, what the sample will earn from there on."""

    def __init__(self, config: LearnerConfig, settings: CriticSettings, rope: Rope, device: torch.device) -> None:
        """Load the checkpoint that the policy begins with; the value head is zero."""
        loader = bridge(config)  # with a separate configuration: Megatron keeps a model's functions there
        chunks = build_chunks(loader, ValueModel, config.device)
        loader.load_weights(list(chunks), str(config.checkpoint_dir))
        for chunk in chunks:
            chunk.add_head()
            chunk.to(device)
        self.chunks = data_parallel(chunks)
        self.optimizer = Optimizer(self.chunks, settings.optimizer, settings.total_steps, config.precision)
        self._value_clip = settings.value_clip
        self._rope = rope
        self._device = device
        self._shares = config.layout.token_shares

    def values(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """Return the value before each micro-batch's targets, on the last stage; else nothing."""
        batches = [_Batch(batch, self._rope, self._device, self._shares) for batch in micro_batches]
        with torch.no_grad():
            return schedule.run(self.chunks, batches, _values, forward_only=True)

    def train(self, micro_batches: Sequence[MicroBatch], *, holds_output: bool) -> OptimizerStep:
        """Take one optimizer step towards the micro-batches' value targets; return metrics over all shares.

        `holds_output`: whether this rank reports the results of its share.
        """
        batches = [_FittedBatch(batch, self._rope, self._device, self._shares) for batch in micro_batches]
        self.optimizer.zero_gradients()
        sums = schedule.run(self.chunks, batches, self._loss, forward_only=False)
        taken, grad_norm = self.optimizer.step()
        measured = over_ranks(sums if holds_output else [], self._device)
        return OptimizerStep(**measured, skipped=int(not taken), critic_grad_norm=grad_norm)

    def _loss(self, batch: "_FittedBatch", values_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Sums]:
        """Return the loss, as Megatron wants it, with a token count that it must not divide by."""
        loss, sums = value_loss(batch.part.whole(values_R), batch.fit, self._value_clip)
        return loss, torch.ones((), dtype=torch.int, device=self._device), sums


def _values(batch: "_Batch", values_R: torch.Tensor, non_loss_data: bool) -> torch.Tensor:
    assert non_loss_data
    return batch.part.whole(values_R)


class _Batch:
    """A micro-batch as tensors on the device."""

    def __init__(self, batch: MicroBatch, rope: Rope, device: torch.device, shares: int) -> None:
        self.part = rank_tokens(token_layout(batch), device, shares)
        self.tokens_N = self.part.input(device)
        self.packed = self.part.packed(rope, device)


class _FittedBatch(_Batch):
    """A micro-batch with its value targets."""

    def __init__(self, batch: MicroBatch, rope: Rope, device: torch.device, shares: int) -> None:
        super().__init__(batch, rope, device, shares)
        assert batch.value_targets is not None, "a critic is trained on micro-batches with value targets"

        def tensor(array: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(array.copy()).to(device)  # arrays from Ray are read-only

        self.fit = Fit(
            old_values_R=tensor(batch.value_targets.old_values),
            returns_R=tensor(batch.value_targets.returns),
            weights_R=tensor(batch.weights_R),
        )
