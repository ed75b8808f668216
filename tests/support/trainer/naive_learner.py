"""The learner written naively, on Hugging Face transformers: one sequence at a time, full logits, torch's optimizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from rljob_api.sections import BalanceOver, Experts, Optimizer
from rljob_api.sizing.families import BY_MODEL_TYPE, Family
from rljob_api.sizing.model_shape import experts_of
from rljob_trainer.algorithms.algorithm import CISPO, GSPO, LIKELIHOOD
from rljob_trainer.batches.packing import TrainingSequence
from rljob_trainer.learners.config import LossSettings


@dataclass(frozen=True)
class NaiveStep:
    loss: float
    grad_norm: float
    gradients: dict[str, torch.Tensor]
    """clipped"""
    routers: dict[str, float]
    """what the routers do, by the names of metrics; empty without experts"""


def _by_expert(tensors: dict[str, torch.Tensor], family: Family) -> dict[str, torch.Tensor]:
    """Return the tensors by the names of checkpoint files; transformers 5 keeps a layer's experts in one tensor."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        prefix, _, last = name.replace(".mlp.", f".{family.mlp}.").rpartition(".")
        if not prefix.endswith("experts"):
            found[f"{prefix}.{last}"] = tensor
            continue
        for expert, weight in enumerate(tensor):
            parts = weight.chunk(2) if last == "gate_up_proj" else (weight,)
            names = family.gate_up if last == "gate_up_proj" else (family.down,)
            found |= {f"{prefix}.{expert}.{each}.weight": part for each, part in zip(names, parts, strict=True)}
    return found


class NaiveLearner:
    def __init__(
        self,
        directory: Path,
        loss: LossSettings,
        optimizer: Optimizer,
        rates: Sequence[float],
        router: Experts | None = None,
    ) -> None:
        self.router = router or Experts()
        self.model = self._load(directory)
        self.family = BY_MODEL_TYPE[self.model.config.model_type]
        self.reference = self._load(directory).requires_grad_(False)
        self.loss, self.settings, self.rates = loss, optimizer, list(rates)
        self.loads: list[tuple[Any, torch.Tensor]] = []
        """of the last step: each mixture of experts, and the tokens of each expert"""
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
            betas=(optimizer.beta1, optimizer.beta2), eps=optimizer.epsilon, weight_decay=optimizer.weight_decay,
        )  # fmt: skip

    def step(self, sequences: Sequence[TrainingSequence], off_policy: bool) -> NaiveStep:
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for sequence in sequences:
            total = total + self._sequence_loss(sequence, off_policy)
        (total + (extra := self._router_loss(sequences))[0]).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_grad)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rates[0]
        self.rates = self.rates[1:]
        gradients = {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
        self.optimizer.step()
        self._adjust_biases()
        return NaiveStep(total.item(), norm.item(), _by_expert(gradients, self.family), extra[1])

    def _adjust_biases(self) -> None:
        """Change the biases of routers as DeepSeek-V3 did (arXiv 2412.19437, 2.1.2)."""
        if self.router.bias_update_rate:
            for block, counts in self.loads:
                block.gate.e_score_correction_bias += self.router.bias_update_rate * (counts.mean() - counts).sign()

    def weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of all weights as they are now."""
        return _by_expert({name: tensor.clone() for name, tensor in self.model.state_dict().items()}, self.family)

    def logprobs(self, model: torch.nn.Module, sequence: TrainingSequence) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the response tokens' log-probabilities and the entropies where they were sampled."""
        tokens = torch.tensor(sequence.tokens)
        logits = model(tokens[None]).logits[0, sequence.prompt_length - 1 : -1] / self.loss.temperature
        all_logprobs = logits.log_softmax(-1)
        targets = tokens[sequence.prompt_length :]
        return all_logprobs.gather(1, targets[:, None])[:, 0], -(all_logprobs.exp() * all_logprobs).sum(-1)

    def _router_loss(self, sequences: Sequence[TrainingSequence]) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the routers' losses, layer by layer as Hugging Face computes them, and their metrics."""
        if not self.family.experts:
            return torch.zeros(()), {}
        config, settings = self.model.config, self.router
        number, chosen = experts_of(config.to_dict()), config.num_experts_per_tok
        layers = self.router_logits(sequences)
        self.loads = []
        balance, z, loads, entropies = torch.zeros(()), torch.zeros(()), [], []
        for block, by_sequence in layers:
            whole = torch.cat(by_sequence)
            parts = [whole] if settings.balance_over is BalanceOver.STEP else by_sequence
            balance = balance + sum(self._balance(block, part, number, chosen) for part in parts) / len(parts)
            z = z + whole.logsumexp(-1).square().mean()
            counts = torch.bincount(self._chosen(block, whole).flatten(), minlength=number).double()
            self.loads.append((block, counts))
            loads.append((counts.max() / counts.mean()).item())
            entropies.append(torch.distributions.Categorical(probs=self._probabilities(whole)).entropy().mean().item())
        balance = balance / chosen  # as Megatron has it: 1 when balanced
        loss = settings.balance_loss * balance + settings.z_loss * z
        return loss, {
            "expert_load": max(loads),
            "router_entropy": sum(entropies) / len(layers),
            "balance_loss": balance.item() / len(layers),
            "router_z_loss": z.item() / len(layers),
        }

    def router_logits(self, sequences: Sequence[TrainingSequence]) -> list[tuple[torch.nn.Module, list[torch.Tensor]]]:
        """Return each mixture of experts with the logits [tokens, experts] of its router for each sequence."""
        mixtures = [layer.mlp for layer in self.model.model.layers if hasattr(layer.mlp, "experts")]
        said: list[list[torch.Tensor]] = [[] for _ in mixtures]

        def heard(place: int, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
            said[place].append(output[0] if isinstance(output, tuple) else output)

        hooks = [
            block.gate.register_forward_hook(lambda _gate, _input, output, place=place: heard(place, output))
            for place, block in enumerate(mixtures)
        ]
        for each in sequences:
            self.model(torch.tensor(each.tokens)[None])
        for hook in hooks:
            hook.remove()
        return list(zip(mixtures, said, strict=True))

    def _probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        scores = logits.sigmoid() if self.family.router_bias else logits.softmax(-1)
        return scores / scores.sum(-1, keepdim=True)

    def _chosen(self, block: torch.nn.Module, logits: torch.Tensor) -> torch.Tensor:
        """Return the experts [tokens, K] that Hugging Face's model chooses."""
        if self.family.router_bias:
            return block.route_tokens_to_experts(logits)[0]
        return logits.topk(self.model.config.num_experts_per_tok).indices

    def _balance(self, block: torch.nn.Module, logits: torch.Tensor, number: int, chosen: int) -> torch.Tensor:
        """Return Hugging Face's loss; for routers with a bias it has none, and the same is written out."""
        if not self.family.router_bias:
            return load_balancing_loss_func((logits,), number, chosen)
        share = torch.nn.functional.one_hot(self._chosen(block, logits), number).sum(1).float().mean(0)
        return number * (share * self._probabilities(logits).mean(0)).sum()

    def _sequence_loss(self, sequence: TrainingSequence, off_policy: bool) -> torch.Tensor:
        new, entropy = self.logprobs(self.model, sequence)
        mask = torch.tensor(sequence.trained or (True,) * len(new))
        engine = torch.zeros(len(new)).masked_scatter(mask, torch.tensor(sequence.logprobs))
        old = engine if off_policy else new.detach()
        loss = self._weights(old, engine) * self._objective(new, old, sequence.advantage)
        loss = loss - self.loss.entropy_coefficient * entropy
        if self.loss.kl:
            x = new - self.logprobs(self.reference, sequence)[0].detach()
            loss = (
                loss
                + self.loss.kl.coefficient * {"k1": x, "k2": x**2 / 2, "k3": (-x).exp() - 1 + x}[self.loss.kl.estimator]
            )
        return sequence.weight * (loss * mask).sum()

    def _objective(self, new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
        """Return the loss of each token of one sequence."""
        if self.loss.objective == LIKELIHOOD:
            return -new
        low, high = 1 - self.loss.clip_low, 1 + self.loss.clip_high
        ratio = (new - old).mean().exp() if self.loss.objective == GSPO else (new - old).exp()
        if self.loss.objective == CISPO:
            return -ratio.detach().clamp(low, high) * advantage * new
        gain = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
        if self.loss.dual_clip and advantage < 0:
            gain = gain.clamp(min=self.loss.dual_clip * advantage)
        return -gain.expand_as(new)

    def _weights(self, old: torch.Tensor, engine: torch.Tensor) -> torch.Tensor:
        """Return the importance weights of one sequence's tokens."""
        bounds = self.loss.importance
        if bounds is None:
            return torch.ones_like(old)
        ratio = (old - engine).sum().exp() if bounds.level == "Sequence" else (old - engine).exp()
        inside = (ratio >= bounds.low) & (ratio <= bounds.high)
        return ratio.clamp(bounds.low, bounds.high) if bounds.kind == "Truncate" else ratio * inside

    @staticmethod
    def _load(directory: Path) -> torch.nn.Module:
        return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
