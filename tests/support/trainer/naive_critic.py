"""The critic written naively, on Hugging Face transformers: one sequence at a time, torch's optimizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModel

from rljob_trainer.batches.packing import TrainingSequence
from rljob_trainer.learners.config import CriticSettings


@dataclass(frozen=True)
class NaiveCriticStep:
    loss: float
    grad_norm: float


class NaiveCritic:
    def __init__(self, directory: Path, settings: CriticSettings, rates: Sequence[float]) -> None:
        self.body = AutoModel.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
        self.head = torch.nn.Linear(self.body.config.hidden_size, 1, bias=False)
        torch.nn.init.zeros_(self.head.weight)
        self.settings, self.rates, optimizer = settings, list(rates), settings.optimizer
        self.parameters = [*self.body.parameters(), self.head.weight]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in self.parameters if p.ndim > 1]},
                {"params": [p for p in self.parameters if p.ndim == 1], "weight_decay": 0.0},
            ],
            betas=(optimizer.beta1, optimizer.beta2), eps=optimizer.epsilon, weight_decay=optimizer.weight_decay,
        )  # fmt: skip

    def values(self, sequence: TrainingSequence) -> torch.Tensor:
        """Return the value before each response token."""
        hidden = self.body(torch.tensor(sequence.tokens)[None]).last_hidden_state[0]
        values: torch.Tensor = self.head(hidden)[sequence.prompt_length - 1 : -1, 0]
        return values

    def step(self, sequences: Sequence[TrainingSequence]) -> NaiveCriticStep:
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for sequence in sequences:
            total = total + sequence.weight * self._errors(sequence).sum() / 2
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.optimizer.clip_grad)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rates[0]
        self.rates = self.rates[1:]
        self.optimizer.step()
        return NaiveCriticStep(total.item(), norm.item())

    def _errors(self, sequence: TrainingSequence) -> torch.Tensor:
        assert sequence.value_targets is not None
        new, clip = self.values(sequence), self.settings.value_clip
        old = torch.from_numpy(sequence.value_targets.old_values).float()
        returns = torch.from_numpy(sequence.value_targets.returns).float()
        return torch.maximum((new - returns) ** 2, (torch.clamp(new, old - clip, old + clip) - returns) ** 2)
