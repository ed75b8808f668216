"""What the routers of a mixture of experts do with a micro-batch beside choosing: losses, statistics, replayed choices.

    balance loss = coefficient x E / K x sum over experts of share of tokens x mean probability    (a layer's)
    z-loss       = coefficient x mean of logsumexp(logits)^2                                       (a layer's)

Both are sums over layers, as Megatron's are. Megatron takes their means over a micro-batch, so its gradients depend on
how samples are packed. Ours are over sequences or over the whole optimizer step: any layout gives the same. A token
that stands for several packed ones counts as often; the copies that fill up a rank's share do not count.

Axes: N computed tokens of this rank's share, T packed tokens in it, S sequences, L layers, E experts, K chosen ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from rljob_api.sections import Experts
from rljob_trainer.expert_metrics import ExpertMetrics

ENTROPY, TOKENS, BALANCE, Z, DROPPED = range(5)
"""columns of a tally after those of the experts"""
Choices = dict[int, torch.Tensor]
"""layer -> experts [N, K] that it chose"""
LogProbabilities = Callable[[torch.Tensor], torch.Tensor]
"""of all experts [N, E], from the logits [N, E]"""


def log_softmax(logits_N_E: torch.Tensor) -> torch.Tensor:
    """Return the logarithms of what routers weigh by that score by softmax."""
    return logits_N_E.log_softmax(-1)


def log_sigmoid(logits_N_E: torch.Tensor) -> torch.Tensor:
    """Return the logarithms of each expert's part of the sum of a token's scores, where routers score by sigmoid.

    So do Megatron's losses, and DeepSeek-V3 (arXiv 2412.19437, equation 19).
    """
    scores_N_E = F.logsigmoid(logits_N_E)
    return scores_N_E - scores_N_E.logsumexp(-1, keepdim=True)


LOG_PROBABILITIES: Mapping[str, LogProbabilities] = {"softmax": log_softmax, "sigmoid": log_sigmoid}
"""by Megatron's name of the score"""


@dataclass
class Tally:
    """What the routers of all layers say in one optimizer step, on this rank."""

    experts: int
    per_token: int
    sums_L: torch.Tensor
    """[L, E + 5] in fp64: tokens of each expert, then the columns above"""

    @classmethod
    def of(cls, layers: int, experts: int, per_token: int, device: torch.device) -> "Tally":
        return cls(experts, per_token, torch.zeros(layers, experts + 5, dtype=torch.float64, device=device))

    def over_ranks(self) -> torch.Tensor:
        """Return the sums over all ranks: each layer and token is one rank's. Collective."""
        whole = self.sums_L.clone()
        dist.all_reduce(whole)
        return whole

    def metrics(self, whole_L: torch.Tensor, settings: Experts) -> ExpertMetrics:
        """Return the metrics of the sums over all ranks."""
        whole = whole_L.cpu()
        loads, rest = whole[:, : self.experts], whole[:, self.experts :]
        tokens = rest[:, TOKENS].sum().item()
        if not tokens:
            return ExpertMetrics()
        routed = rest[:, TOKENS] > 0  # the first layers of some models have no experts
        loads, rest = loads[routed], rest[routed]
        return ExpertMetrics(
            expert_load=(loads.amax(1) * self.experts / loads.sum(1)).amax().item(),
            router_entropy=rest[:, ENTROPY].sum().item() / tokens,
            balance_loss=rest[:, BALANCE].mean().item() if settings.balance_loss else None,
            router_z_loss=rest[:, Z].sum().item() / tokens if settings.z_loss else None,
            dropped_tokens=round(rest[:, DROPPED].sum().item()),
        )


@dataclass(frozen=True, slots=True)
class StepTotals:
    """What a step's losses are means over, on all ranks."""

    sequences: torch.Tensor
    tokens: torch.Tensor
    loads_L_E: torch.Tensor | None = None
    """tokens of each expert, where the balance is over the step"""


@dataclass
class Routing:
    """One micro-batch, as the routers of this rank see it."""

    settings: Experts
    counts_N: torch.Tensor
    """how many packed tokens that count each computed token of this rank's share stands for"""
    node_T: torch.Tensor
    """for each packed token that counts and is in this share: its place in N"""
    sequence_T: torch.Tensor
    lengths_S: torch.Tensor
    group: dist.ProcessGroup
    """the ranks that share out the tokens of a micro-batch"""
    step: StepTotals | None
    """None: no loss is wanted"""
    tally: Tally | None
    """None: nothing is to be counted"""
    always: bool = False
    """count without gradients, too"""
    wanted: Choices | None = None
    """the experts to use instead of those that the routers would choose; below 0: the router's own"""
    made: Choices | None = None
    """where the choices are noted; None: nowhere"""
    log_probabilities: LogProbabilities = log_softmax

    def chosen(self, layer: int, scores: torch.Tensor, top: torch.Tensor, own: torch.Tensor) -> tuple[Any, Any]:
        """Return scores and experts to use in a layer, where the router found `top` and `own` best."""
        experts = own
        if self.wanted is not None:
            wanted = self.wanted[layer].to(own.dtype)
            experts = torch.where(wanted < 0, own, wanted)
            top = scores.gather(1, experts)
        if self.made is not None:
            self.made[layer] = experts.detach().to(torch.int16)
        return top, experts

    def losses(self, layer: int, logits: torch.Tensor, chosen: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
        """Return `probs` with the gradients of the losses attached, and count. Once for each token of a step: what is
        computed again in the backward pass was computed without gradients before."""
        if self.tally is None or not (self.always or torch.is_grad_enabled()):
            return probs
        logits, chosen_N_E = logits.float(), chosen.detach().double()
        log_N_E = self.log_probabilities(logits)
        probabilities, counts = log_N_E.exp(), self.counts_N
        row, experts = self.tally.sums_L[layer], self.tally.experts
        with torch.no_grad():
            row[:experts] += counts @ chosen_N_E
            row[experts + ENTROPY] -= (counts * (probabilities * log_N_E).sum(-1)).sum()
            row[experts + TOKENS] += counts.sum()
            row[experts + DROPPED] += (counts * (self.tally.per_token - chosen_N_E.sum(-1))).sum()
        if self.step is None:
            return probs
        loss = logits.new_zeros(())
        if self.settings.balance_loss:
            balance = (probabilities * self._shares(layer, chosen_N_E).to(logits.dtype)).sum()
            row[experts + BALANCE] += balance.detach().double()
            loss = loss + self.settings.balance_loss * balance
        if self.settings.z_loss:
            squares = (counts * logits.logsumexp(-1).square()).sum()
            row[experts + Z] += squares.detach()
            loss = loss + (self.settings.z_loss * squares / self.step.tokens).to(logits.dtype)
        attached: torch.Tensor = _Attached.apply(probs, loss)
        return attached

    def _shares(self, layer: int, chosen_N_E: torch.Tensor) -> torch.Tensor:
        """Return what the probability of each expert counts for in the balance loss, for each token."""
        assert self.step is not None and self.tally is not None
        scale = self.tally.experts / self.tally.per_token
        if self.step.loads_L_E is not None:
            share_E = self.step.loads_L_E[layer] / self.step.tokens
            return scale / self.step.tokens * self.counts_N[:, None] * share_E
        loads_S_E = chosen_N_E.new_zeros(len(self.lengths_S), self.tally.experts)
        loads_S_E.index_add_(0, self.sequence_T, chosen_N_E[self.node_T])
        dist.all_reduce(loads_S_E, group=self.group)
        share_S_E = loads_S_E * (scale / self.step.sequences / self.lengths_S.square())[:, None]
        return torch.zeros_like(chosen_N_E).index_add_(0, self.node_T, share_S_E[self.sequence_T])


class _Attached(torch.autograd.Function):
    """The first argument; going backward, the second is a loss."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        ctx.loss = loss.dtype, loss.device
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dtype, device = ctx.loss
        return grad, torch.ones((), dtype=dtype, device=device)
