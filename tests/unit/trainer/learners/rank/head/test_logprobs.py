"""Chunked log-probabilities and entropies, against log_softmax of full logits in fp64."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rljob_trainer.learners.config import EntropyUse
from rljob_trainer.learners.rank.head import logprobs as head
from rljob_trainer.learners.rank.head.head_settings import VocabularyShard
from rljob_trainer.learners.rank.head.logprobs import logprobs_and_entropy

ROWS, HIDDEN, VOCABULARY = 10, 16, 50
FIRST_PART = 20
"""tokens of the first rank, where there are two"""


def case(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(ROWS, HIDDEN, generator=generator, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (ROWS,), generator=generator)
    targets[:4] = torch.tensor([0, FIRST_PART - 1, FIRST_PART, VOCABULARY - 1])
    return hidden, weight, targets


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


def test_gradients_of_many_chunks_are_added_up_in_fp32() -> None:
    """In bf16 a sum of equal numbers stops growing at 256 of them."""
    many = 400
    hidden, weight, targets = case()
    row, shard = hidden[:1].detach().bfloat16(), VocabularyShard(0, VOCABULARY, None)

    def gradient(rows: int) -> torch.Tensor:
        own = weight.detach().bfloat16().requires_grad_()
        each = logprobs_and_entropy(row.expand(rows, -1), own, targets[:1].expand(rows), shard, chunk_rows=1)[0]
        return torch.autograd.grad(each.sum(), own)[0].float()

    torch.testing.assert_close(gradient(many), many * gradient(1), rtol=0.02, atol=1e-3)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each projection onto the vocabulary, in order."""
    rows: list[int] = []
    project = head._logits

    def counted(hidden: torch.Tensor, *others: Any) -> torch.Tensor:
        rows.append(len(hidden))
        return project(hidden, *others)

    monkeypatch.setattr(head, "_logits", counted)
    return rows


@pytest.mark.parametrize(
    ("budget", "forward"),
    [
        (4 * VOCABULARY * 3, [3, 3, 3, 1]),
        (1, [1] * ROWS),
        (4 * VOCABULARY * ROWS, [ROWS]),
        (4 * VOCABULARY * (ROWS + 1), [ROWS]),
    ],
)
def test_chunks_of_fp32_logits_are_within_their_budget(
    monkeypatch: pytest.MonkeyPatch, computed: list[int], budget: int, forward: list[int]
) -> None:
    monkeypatch.setattr(head._Head, "chunk_bytes", budget)
    hidden, weight, targets = case()
    logprobs, _ = logprobs_and_entropy(hidden, weight, targets, VocabularyShard(0, VOCABULARY, None))
    assert computed == forward
    computed.clear()
    logprobs.sum().backward()
    assert computed == (forward if len(forward) > 1 else []), "a single chunk keeps its probabilities"


@pytest.mark.parametrize("group", [None, "ranks"])
def test_parts_of_a_vocabulary_meet_in_their_group(monkeypatch: pytest.MonkeyPatch, group: Any) -> None:
    met: list[tuple[torch.Tensor, object, object]] = []
    monkeypatch.setattr(dist, "all_reduce", lambda x, op, group: met.append((x, op, group)))
    shard, x = VocabularyShard(0, VOCABULARY, group), torch.ones(2)
    assert shard.sum(x) is x and shard.max(x) is x
    assert met == ([(x, dist.ReduceOp.SUM, group), (x, dist.ReduceOp.MAX, group)] if group else [])


class Parts(VocabularyShard):
    """Two parts of a vocabulary in two threads of this process, which meet as ranks would."""

    def _reduced(self, x: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> torch.Tensor:
        both, meeting = self.group  # type: ignore[misc]  # it stands for a process group
        both[self.start] = x.clone()
        meeting.wait()
        parts = torch.stack([both[start] for start in sorted(both)])
        meeting.wait()
        return x.copy_({dist.ReduceOp.SUM: parts.sum(0), dist.ReduceOp.MAX: parts.max(0).values}[operation])


@pytest.mark.parametrize("scale", [1.0, 60.0], ids=["ordinary", "beyond what exp can hold"])
def test_a_vocabulary_in_two_parts_gives_the_numbers_of_the_whole(scale: float) -> None:
    hidden, weight, targets = case()
    hidden, weight = hidden.detach() * scale, weight.detach()
    group = ({}, threading.Barrier(2))

    def part(start: int, size: int) -> list[torch.Tensor]:
        own_hidden, own_weight = hidden.clone().requires_grad_(), weight[start : start + size].clone().requires_grad_()
        shard = Parts(start, size, group)  # type: ignore[arg-type]
        both = logprobs_and_entropy(own_hidden, own_weight, targets, shard, entropy="differentiated", chunk_rows=4)
        return [*(x.detach() for x in both), *torch.autograd.grad(mix(*both), (own_hidden, own_weight))]

    with ThreadPoolExecutor(2) as ranks:
        first, second = ranks.map(part, (0, FIRST_PART), (FIRST_PART, VOCABULARY - FIRST_PART))
    whole_hidden, whole_weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    theirs = naive(whole_hidden, whole_weight, targets, 1.0)
    gradients = torch.autograd.grad(mix(*theirs), (whole_hidden, whole_weight))
    for mine in (first, second):
        torch.testing.assert_close(mine[:2], [x.detach().float() for x in theirs], rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(mine[2], gradients[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(torch.cat([first[3], second[3]]), gradients[1], rtol=1e-3, atol=1e-3 * scale)
