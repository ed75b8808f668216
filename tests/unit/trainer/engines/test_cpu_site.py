"""What engines on CPU compute in their own way is what PyTorch would."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rljob_trainer.engines.command import CPU_SITE

DRAWS = 200_000


@pytest.fixture
def matrices(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(CPU_SITE)
    import rljob_sglang_matrices  # type: ignore[import-not-found]

    yield rljob_sglang_matrices
    del sys.modules["rljob_sglang_matrices"]


@pytest.fixture
def experts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(CPU_SITE)
    import rljob_sglang_experts  # type: ignore[import-not-found]

    yield rljob_sglang_experts
    del sys.modules["rljob_sglang_experts"]


@pytest.mark.parametrize("renormalize", [True, False])
def test_tokens_go_to_their_most_probable_experts(experts: Any, renormalize: bool) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]], dtype=torch.bfloat16)
    weights, chosen = experts.chosen(torch.zeros(1, 8), logits, 2, renormalize)
    probable = torch.tensor([2.0, 1.0]).exp() / logits.float().exp().sum()
    assert chosen.tolist() == [[1, 2]] and chosen.dtype == torch.int32
    torch.testing.assert_close(weights[0], probable / probable.sum() if renormalize else probable)


@pytest.mark.parametrize("other", [{"scoring_func": "sigmoid"}, {"correction_bias": torch.zeros(4)}])
def test_another_way_of_choosing_experts_is_refused(experts: Any, other: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match="by softmax on CPU"):
        experts.chosen(torch.zeros(1, 8), torch.zeros(1, 4), 2, True, **other)


def not_asked(*_: object, **__: object) -> torch.Tensor:
    raise AssertionError("SGLang's own is not needed")


@pytest.mark.parametrize("shape", [(1, 600), (7, 600), (2, 3, 600), (0, 600)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_layers(matrices: Any, shape: tuple[int, ...], with_bias: bool) -> None:
    x, weight, bias = torch.randn(shape), torch.randn(500, 600), torch.randn(500) if with_bias else None
    made = matrices.linear(not_asked, None, SimpleNamespace(weight=weight), x, bias=bias)
    torch.testing.assert_close(made, torch.nn.functional.linear(x, weight, bias), rtol=1e-5, atol=1e-4)


def test_rows_that_are_part_of_a_wider_matrix(matrices: Any) -> None:
    x, weight = torch.randn(8, 48)[:, 24:], torch.randn(10, 24)
    torch.testing.assert_close(matrices.product(x, weight), x @ weight.T)


@pytest.mark.parametrize(("inner", "dtype"), [(3000, torch.bfloat16), (30, torch.float32)])
def test_other_precisions_and_small_matrices_are_left_to_sglang(matrices: Any, inner: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(2, 100, dtype=dtype), torch.randn(inner, 100, dtype=dtype)
    asked: list[object] = []
    layer = SimpleNamespace(weight=weight)
    matrices.linear(lambda *given: asked.append(given), None, layer, x, None)
    matrices.logits(lambda *given: asked.append(given), None, x, layer, None)
    assert len(asked) == 2


def test_logits(matrices: Any) -> None:
    hidden, weight = torch.randn(5, 100), torch.randn(3000, 100)
    made = matrices.logits(not_asked, None, hidden, SimpleNamespace(weight=weight), None)
    torch.testing.assert_close(made, hidden @ weight.T, rtol=1e-5, atol=1e-4)


def test_words_are_sampled_as_often_as_they_are_probable(matrices: Any) -> None:
    probs = torch.softmax(torch.randn(30, generator=torch.Generator().manual_seed(0)) * 2, -1)
    probs[[0, 7, 29]] = 0
    probs /= probs.sum()
    words = matrices.sample(not_asked, probs.expand(DRAWS, 30), sampling_seed=None, positions=torch.zeros(DRAWS))
    assert words.dtype == torch.int32
    shares = torch.bincount(words.long(), minlength=30) / DRAWS
    assert not shares[[0, 7, 29]].any()
    errors = (probs * (1 - probs) / DRAWS).sqrt()
    assert ((shares - probs).abs() <= 5 * errors).all()


def test_a_sequence_with_a_seed_is_left_to_sglang(matrices: Any) -> None:
    asked: list[object] = []
    seed = torch.tensor([1])
    matrices.sample(lambda *given: asked.append(given), torch.ones(1, 4) / 4, sampling_seed=seed, positions=None)
    assert len(asked) == 1
