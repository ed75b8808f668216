"""The algorithms written from their papers, token by token: an oracle that shares no code with ours."""

import math
from dataclasses import dataclass

import torch

from support.trainer.algorithm_batches import LONGEST, Batch


def advantages(name: str, b: Batch, kl_D_T: torch.Tensor | None = None) -> torch.Tensor:
    """Return A for every token, zero where there is none; `kl_D_T` is taken from the rewards."""
    samples = range(len(b.groups_D))
    kl = torch.zeros_like(b.mask_D_T) if kl_D_T is None else kl_D_T
    score = [b.rewards_D[i].item() - sum(kl[i, t].item() for t in range(b.lengths_D[i])) for i in samples]
    group = [[score[j] for j in samples if b.groups_D[j] == b.groups_D[i]] for i in samples]
    mean = [math.fsum(each) / len(each) for each in group]
    tokens = [(i, t) for i in samples for t in range(b.lengths_D[i])]
    match name:
        case "grpo-group":
            a = {(i, t): (score[i] - mean[i]) / (spread(group[i]) + 1e-6) for i, t in tokens}
        case "grpo-batch":
            a = {(i, t): (score[i] - mean[i]) / (spread(score) + 1e-6) for i, t in tokens}
        case "grpo-none":
            a = {(i, t): score[i] - mean[i] for i, t in tokens}
        case "rloo":
            a = {(i, t): score[i] - (math.fsum(group[i]) - score[i]) / (len(group[i]) - 1) for i, t in tokens}
        case "reinforcePlusPlus":
            a = whitened({(i, t): b.rewards_D[i].item() - kl[i, t : b.lengths_D[i]].sum().item() for i, t in tokens})
        case "reinforcePlusPlusBaseline":
            a = whitened({(i, t): score[i] - mean[i] for i, t in tokens})
    padded_D_T = torch.zeros_like(b.mask_D_T)
    for place, value in a.items():
        padded_D_T[place] = value
    return padded_D_T


def generalized_advantages(
    b: Batch, gamma: float, lambda_: float, kl_D_T: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whitened advantages and returns of every token: GAE as the mean of n-step advantages, its equation 16."""
    kl = torch.zeros_like(b.mask_D_T) if kl_D_T is None else kl_D_T
    raw = {}
    for i, length in enumerate(b.lengths_D):
        for t in range(length):
            raw[i, t] = 0.0
            for n in range(1, length - t + 1):
                end = t + n
                rewards = sum(gamma**k * -kl[i, t + k].item() for k in range(n))
                rewards += gamma ** (n - 1) * b.rewards_D[i].item() if end == length else 0.0
                after = gamma**n * b.values_D_T[i, end].item() if end < length else 0.0
                share = lambda_ ** (n - 1) * (1.0 if end == length else 1.0 - lambda_)
                raw[i, t] += share * (rewards + after - b.values_D_T[i, t].item())
    advantages, returns = torch.zeros_like(b.mask_D_T), torch.zeros_like(b.mask_D_T)
    for place, value in whitened(raw).items():
        advantages[place], returns[place] = value, raw[place] + b.values_D_T[place]
    return advantages, returns


def value_loss(b: Batch, by: str, clip: float, new_D_T: torch.Tensor) -> torch.Tensor:
    """Return the critic's loss; its gradient is that of the formula, by autograd."""
    total = torch.zeros((), dtype=torch.float64)
    for i, length in enumerate(b.lengths_D):
        for t in range(length):
            old, wanted = b.values_D_T[i, t].item(), b.returns_D_T[i, t].item()
            near = torch.clamp(new_D_T[i, t], old - clip, old + clip)
            error = torch.maximum((new_D_T[i, t] - wanted) ** 2, (near - wanted) ** 2)
            total = total + weight(by, b.lengths_D, i) * error / 2
    return total


def weight(by: str, lengths: tuple[int, ...], i: int) -> float:
    """Return the weight of a token of sample `i`."""
    return {
        "token": 1 / sum(lengths),
        "sample": 1 / (len(lengths) * lengths[i]),
        "constant": 1 / (len(lengths) * LONGEST),
    }[by]


def spread(values: list[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def whitened(values: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    mean = math.fsum(values.values()) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values.values()) / (len(values) - 1)
    return {place: (value - mean) / math.sqrt(variance + 1e-8) for place, value in values.items()}


@dataclass(frozen=True)
class Wanted:
    """What a loss consists of."""

    objective: str = "clip"
    by: str = "token"
    low: float = 0.2
    high: float = 0.28
    dual: float | None = None
    correction: str | None = None
    bounds: tuple[float, float] = (0.0, math.inf)
    kl: tuple[str, float] | None = None
    entropy: float = 0.0
    on_policy: bool = False


def loss(wanted: Wanted, b: Batch, new_D_T: torch.Tensor) -> torch.Tensor:
    """Return the loss; its gradient is that of the formulas, by autograd."""
    old_D_T = new_D_T.detach() if wanted.on_policy else b.old_D_T
    total = torch.zeros((), dtype=torch.float64)
    for i, length in enumerate(b.lengths_D):
        for t in range(length):
            of_token = correction(wanted, b, old_D_T, i, t) * objective(wanted, b, new_D_T, old_D_T, i, t)
            if wanted.kl:
                x = new_D_T[i, t] - b.reference_D_T[i, t]
                estimate = {"k1": x, "k2": x * x / 2, "k3": (-x).exp() - 1 + x}[wanted.kl[0]]
                of_token = of_token + wanted.kl[1] * estimate
            of_token = of_token - wanted.entropy * b.entropy_D_T[i, t]
            total = total + weight(wanted.by, b.lengths_D, i) * of_token
    return total


def objective(wanted: Wanted, b: Batch, new: torch.Tensor, old: torch.Tensor, i: int, t: int) -> torch.Tensor:
    a, length = b.advantages_D[i], b.lengths_D[i]
    if wanted.objective == "cispo":
        r = math.exp(new[i, t].item() - old[i, t].item())
        return -min(max(r, 1 - wanted.low), 1 + wanted.high) * a * new[i, t]
    if wanted.objective == "gspo":  # the sequence form of the paper, not the token form
        r = torch.stack([new[i, k] - old[i, k] for k in range(length)]).mean().exp()
    else:
        r = (new[i, t] - old[i, t]).exp()
    gain = torch.minimum(r * a, r.clamp(1 - wanted.low, 1 + wanted.high) * a)
    if wanted.dual is not None and a < 0:
        gain = torch.maximum(gain, wanted.dual * a)
    return -gain


def correction(wanted: Wanted, b: Batch, old: torch.Tensor, i: int, t: int) -> float:
    if wanted.correction is None:
        return 1.0
    kind, level = wanted.correction.split("-")
    places = [t] if level == "token" else range(b.lengths_D[i])
    weight = math.prod(math.exp(old[i, k].item() - b.engine_D_T[i, k].item()) for k in places)
    low, high = wanted.bounds
    if kind == "mask":
        return weight if low <= weight <= high else 0.0
    return min(max(weight, low), high)
