"""What the last stage of a policy or teacher makes of its output: log-probabilities of the response tokens."""

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state

from rljob_trainer.learners.config import EntropyUse
from rljob_trainer.learners.rank.device_batches import Batch
from rljob_trainer.learners.rank.head.head_settings import VocabularyShard
from rljob_trainer.learners.rank.head.logprobs import logprobs_and_entropy


@dataclass(frozen=True, slots=True)
class PolicyHead:
    """This rank's part of a model's head. Tensor-parallel ranks share the vocabulary."""

    chunk: Any
    """the last of this rank's chunks; only that of the last stage has a head"""
    vocab_size: int
    temperature: float

    def __call__(
        self, batch: Batch, hidden_R_H: torch.Tensor, entropy: EntropyUse
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies of the targets."""
        weight, group = self.chunk.head_weight, parallel_state.get_tensor_model_parallel_group()
        start = group.rank() * len(weight)
        shard = VocabularyShard(
            start=start,
            size=min(len(weight), self.vocab_size - start),
            group=group if group.size() > 1 else None,
        )
        own = logprobs_and_entropy(
            hidden_R_H,
            weight,
            batch.part.own(batch.target_tokens_R),
            shard,
            temperature=self.temperature,
            entropy=entropy,
        )
        logprobs_R, entropy_R = batch.part.whole(torch.stack(own))
        return logprobs_R, entropy_R

    def measure(self, batch: Batch, hidden_R_H: torch.Tensor, non_loss_data: bool) -> torch.Tensor:
        """Return the log-probabilities of the targets, as an outcome of a pass without gradients."""
        assert non_loss_data
        return self(batch, hidden_R_H, "none")[0]
