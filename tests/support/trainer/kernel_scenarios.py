"""What the tests of the learner's kernels do where Triton interprets them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from rljob_trainer.batches.packing import Packing, TrainingSequence, pack
from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank.attention import query_key
from rljob_trainer.learners.rank.head import logprobs, token_statistics
from rljob_trainer.learners.rank.head.fused_head import FusedHead
from rljob_trainer.learners.rank.head.head_settings import HeadSettings, VocabularyShard
from rljob_trainer.learners.rank.model import layer_kernels, model
from rljob_trainer.learners.rank.rank import LearnerRank
from rljob_trainer.metrics import OptimizerStep
from rljob_trainer.processes.ports import free_ports

EPSILON = 1e-2
"""large, so that a kernel that forgets it is wrong"""


def errors_of_random_shapes(seed: int, count: int) -> dict[str, float]:
    """Return the largest relative error of each result and gradient, over random shapes, against PyTorch in fp64."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    worst: dict[str, float] = {}
    for _ in range(count):
        tokens, groups, heads = rng.choice([1, 2, 15, 16, 17, 33, 64]), rng.choice([1, 2, 3]), rng.choice([1, 2, 5])
        for name, error in _errors(tokens, groups, heads, 2 * rng.choice([1, 3, 8, 32, 40]), rng.random() < 0.7):
            worst[name] = max(worst.get(name, 0.0), error)
    return worst


def _errors(tokens: int, groups: int, heads: int, head_dim: int, normed: bool) -> Iterator[tuple[str, float]]:
    angles = torch.randn(tokens, 1, head_dim // 2) * 9
    cos, sin = angles.cos(), angles.sin()
    inputs = [torch.randn(tokens, groups * (heads + 2) * head_dim)]
    inputs += [torch.randn(head_dim) for _ in range(2 * normed)]
    leaves = [each.requires_grad_() for each in inputs]
    exact = [each.detach().double().requires_grad_() for each in inputs]
    weights = leaves[1:] or [None, None]
    results = query_key.query_key_value(
        leaves[0], cos, sin, *weights, groups=groups, head_dim=head_dim, epsilon=EPSILON
    )
    expected = _naive(exact[0], cos.double(), sin.double(), exact[1:], groups, head_dim)
    upstream = [torch.randn_like(each) for each in results]
    grads = torch.autograd.grad(results, leaves, upstream)
    expected_grads = torch.autograd.grad(expected, exact, [each.double() for each in upstream])
    names = ("q", "k", "v", "projection's gradient", "q weight's gradient", "k weight's gradient")
    for name, is_, should in zip(names, (*results, *grads), (*expected, *expected_grads), strict=False):
        yield name, float((is_ - should).norm() / should.norm().clamp_min(1e-3))


def errors_of_random_layers(seed: int, count: int) -> dict[str, float]:
    """Return the largest relative error of the kernels between a layer's products, against PyTorch in fp64."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    worst: dict[str, float] = {}
    with patch.multiple(layer_kernels, _COLUMNS=16, _PROGRAMS=8):
        for _ in range(count):
            shape = rng.choice([1, 2, 7, 8, 9, 33]), 1, rng.choice([1, 3, 16, 17, 48, 100])
            for name, error in _layer_errors(shape):
                worst[name] = max(worst.get(name, 0.0), error)
    return worst


def _layer_errors(shape: tuple[int, ...]) -> Iterator[tuple[str, float]]:
    x, residual, upstream, beside = (torch.randn(shape) for _ in range(4))
    weight, wide = torch.randn(shape[-1]), torch.randn(*shape[:-1], 2 * shape[-1])

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weight

    def summed(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return norm(x + residual, weight), x + residual

    def gated(wide: torch.Tensor) -> torch.Tensor:
        gate, up = wide.chunk(2, -1)
        return gate * torch.sigmoid(gate) * up

    cases: list[tuple[str, Any, Any, list[torch.Tensor]]] = [
        ("norm", lambda *a: layer_kernels.rms_norm(*a, EPSILON), norm, [x, weight]),
        ("sum and norm", lambda *a: layer_kernels.add_rms_norm(*a, EPSILON), summed, [x, residual, weight]),
        ("gate", layer_kernels.swiglu, gated, [wide]),
    ]
    for name, kernel, naive, inputs in cases:
        leaves = [each.clone().requires_grad_() for each in inputs]
        exact = [each.double().requires_grad_() for each in inputs]
        results, wanted = (each if isinstance(each, tuple) else (each,) for each in (kernel(*leaves), naive(*exact)))
        grads = torch.autograd.grad(results, leaves, [upstream, beside][: len(results)])
        wanted_grads = torch.autograd.grad(wanted, exact, [upstream.double(), beside.double()][: len(results)])
        for index, (is_, should) in enumerate(zip((*results, *grads), (*wanted, *wanted_grads), strict=True)):
            yield f"{name} {index}", float((is_ - should).norm() / should.norm().clamp_min(1e-2))


def _naive(
    projected: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, weights: list[torch.Tensor], groups: int, dim: int
) -> tuple[torch.Tensor, ...]:
    heads = projected.unflatten(-1, (groups, -1, dim))
    vectors = [heads[:, :, :-2].flatten(1, 2), heads[:, :, -2]]
    turned = []
    for x, weight in zip(vectors, weights or [None, None], strict=True):
        if weight is not None:
            x = x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weight
        pairs = torch.complex(*x.chunk(2, -1)) * torch.complex(cos, sin)
        turned.append(torch.cat((pairs.real, pairs.imag), -1))
    return *turned, heads[:, :, -1]


def errors_of_random_heads(seed: int, count: int) -> dict[str, float]:
    """Return the largest relative error of the output layer's results and gradients against PyTorch in fp64."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    worst: dict[str, float] = {}
    with patch.object(token_statistics, "_COLUMNS", 16):
        for _ in range(count):
            room = patch.object(FusedHead, "kept_share", rng.choice([0.0, 1e-7, 1.0]))  # of chunks: none, some, all
            rows, vocabulary = rng.choice([1, 2, 7, 33]), rng.choice([1, 2, 15, 16, 17, 50])
            temperature, entropy = rng.choice([1.0, 0.6, 1.7]), rng.choice(["none", "measured", "differentiated"])
            with room:
                for name, error in _head_errors(rows, vocabulary, rng.choice([1, 5, 100]), temperature, entropy):
                    worst[name] = max(worst.get(name, 0.0), error)
    return worst


def _head_errors(
    rows: int, vocabulary: int, chunk: int, temperature: float, entropy: Any
) -> Iterator[tuple[str, float]]:
    leaves = [2 * torch.randn(rows, 8), torch.randn(vocabulary + 3, 8)]  # three rows only pad the vocabulary
    exact = [each.double().requires_grad_() for each in leaves]
    for each in leaves:
        each.requires_grad_()
    targets = torch.randint(0, vocabulary, (rows,))
    targets[0] = vocabulary - 1
    settings = HeadSettings(VocabularyShard(0, vocabulary, None), temperature, entropy, chunk, True)
    logprobs, measured = FusedHead.apply(*leaves, targets, settings)
    log_p = (exact[0] @ exact[1][:vocabulary].t() / temperature).log_softmax(-1)
    expected = log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1) * (entropy != "none")
    by_logprob, by_entropy = torch.randn(2, rows)
    grads = torch.autograd.grad((logprobs * by_logprob).sum() + (measured * by_entropy).sum(), leaves)
    wanted = (expected[0] * by_logprob).sum() + (expected[1] * by_entropy).sum() * (entropy == "differentiated")
    expected_grads = torch.autograd.grad(wanted, exact)
    names = ("log-probabilities", "entropies", "hidden states' gradient", "weight's gradient")
    for name, is_, should in zip(names, (logprobs, measured, *grads), (*expected, *expected_grads), strict=True):
        yield f"{name}, entropy {entropy}", float((is_ - should).norm() / should.norm().clamp_min(1e-1))


Outcome = tuple[list[OptimizerStep], dict[str, torch.Tensor]]


def train_plain_and_fused(config: LearnerConfig, steps: list[list[TrainingSequence]]) -> tuple[Outcome, Outcome, int]:
    """Return metrics and weights of both, and how often the fused one made queries and keys."""
    plain = _train(config, steps)
    with _as_on_a_gpu(), patch.object(query_key, "_forward", _Counted(query_key._forward)) as counted:
        fused = _train(config, steps)
    return plain, fused, counted.calls


def train_fused_rank(
    rank: int, world_size: int, port: int, config: LearnerConfig, steps: list[list[TrainingSequence]]
) -> tuple[Outcome, int]:
    """Return metrics and weights of one of several ranks with the layers of a GPU, and how often they were used."""
    with _layers_of_a_gpu(), patch.object(layer_kernels, "_norm", _Counted(layer_kernels._norm)) as counted:
        return _train(config, steps, rank, world_size, port), counted.calls


class _Counted:
    """A kernel that counts its launches."""

    def __init__(self, kernel: Any) -> None:
        self.calls = 0
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.calls += 1
        return self._kernel[grid]


@contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    """Let models have the layers and the head that they have on a GPU."""
    with _layers_of_a_gpu(), patch.object(logprobs, "_head", lambda _hidden, _shard: FusedHead):
        yield


@contextmanager
def _layers_of_a_gpu() -> Iterator[None]:
    layer_spec = model._layer_spec
    with patch.object(
        model, "_layer_spec", lambda config, family, _device, **of: layer_spec(config, family, "cuda", **of)
    ):
        yield


def _train(
    config: LearnerConfig, steps: list[list[TrainingSequence]], rank: int = 0, world_size: int = 1, port: int = 0
) -> Outcome:
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port or free_ports("127.0.0.1")[0])
    taken = []
    for sequences in steps:
        (batches,) = pack(sequences, Packing(data_parallel=1, max_tokens=64))
        taken.append(learner.train(batches))
    weights = {name: tensor.clone() for name, tensor in learner.export()}
    learner.close()
    return taken, weights
