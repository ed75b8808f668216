"""Chunked log-probabilities and entropies, against log_softmax of full logits in fp64."""

import pytest
import torch

from rljob_trainer.learners.config import EntropyUse
from rljob_trainer.learners.logprobs import VocabularyShard, logprobs_and_entropy

ROWS, HIDDEN, VOCABULARY = 10, 16, 50


def case(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(ROWS, HIDDEN, generator=generator, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator, requires_grad=True)
    return hidden, weight, torch.randint(0, VOCABULARY, (ROWS,), generator=generator)


def naive(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs = (hidden.double() @ weight.double().t() / temperature).log_softmax(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


def mix(logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(-1, 1, ROWS, dtype=logprobs.dtype)
    return (logprobs * weights).sum() + (entropy * weights.square()).sum()


@pytest.mark.parametrize("chunk_rows", [1, 3, ROWS, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_are_exact(chunk_rows: int, temperature: float) -> None:
    hidden, weight, targets = case()
    ours = logprobs_and_entropy(
        hidden, weight, targets, VocabularyShard(0, VOCABULARY, None),
        temperature=temperature, entropy="differentiated", chunk_rows=chunk_rows,
    )  # fmt: skip
    theirs = naive(hidden, weight, targets, temperature)
    torch.testing.assert_close(torch.stack(ours), torch.stack(theirs).float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        torch.autograd.grad(mix(*ours), (hidden, weight)),
        torch.autograd.grad(mix(*theirs), (hidden, weight)),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("chunk_rows", [3, 100])
@pytest.mark.parametrize("entropy", ["none", "measured"])
def test_an_entropy_that_is_only_measured_leaves_the_gradient_alone(chunk_rows: int, entropy: EntropyUse) -> None:
    hidden, weight, targets = case()
    shard = VocabularyShard(0, VOCABULARY, None)
    logprobs, measured = logprobs_and_entropy(hidden, weight, targets, shard, entropy=entropy, chunk_rows=chunk_rows)
    theirs, expected = naive(hidden, weight, targets, 1.0)
    torch.testing.assert_close(measured, expected.float() * (entropy == "measured"), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        torch.autograd.grad(logprobs.sum(), hidden), torch.autograd.grad(theirs.sum(), hidden), rtol=1e-4, atol=1e-5
    )


def test_tokens_that_pad_the_vocabulary_do_not_count() -> None:
    hidden, weight, targets = case()
    padded = torch.cat([weight, torch.full((6, HIDDEN), 1e3)])
    logprobs, _ = logprobs_and_entropy(hidden, padded, targets, VocabularyShard(0, VOCABULARY, None))
    expected, _ = naive(hidden, weight, targets, 1.0)
    torch.testing.assert_close(logprobs, expected.float(), rtol=1e-5, atol=1e-5)


def test_the_weight_gradient_is_added_to_megatrons_buffer() -> None:
    hidden, weight, targets = case()
    _, other, _ = case()
    weight.main_grad = torch.ones(VOCABULARY, HIDDEN)  # type: ignore[attr-defined]  # Megatron's own attribute
    shard = VocabularyShard(0, VOCABULARY, None)
    logprobs_and_entropy(hidden, weight, targets, shard)[0].sum().backward()
    expected = torch.autograd.grad(logprobs_and_entropy(hidden, other, targets, shard)[0].sum(), other)[0]
    assert weight.grad is None
    torch.testing.assert_close(weight.main_grad - 1, expected, rtol=1e-4, atol=1e-5)  # type: ignore[attr-defined]


def test_bf16_weights_give_fp32_logprobs() -> None:
    hidden, weight, targets = case()
    shard = VocabularyShard(0, VOCABULARY, None)
    logprobs, _ = logprobs_and_entropy(hidden.bfloat16(), weight.bfloat16(), targets, shard)
    expected, _ = naive(hidden, weight, targets, 1.0)
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs, expected.float(), rtol=0.05, atol=0.1)
