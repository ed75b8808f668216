"""Large fp32 products on a CPU are oneDNN's, with the same numbers; gradients and all others are PyTorch's."""

import pytest
import torch

from rljob_trainer.learners.rank.replacements import matrices

ROWS, INNER, COLUMNS = 256, 512, 640


@pytest.fixture
def by_one_dnn(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes that oneDNN has made."""
    shapes: list[torch.Size] = []
    original = matrices.product

    def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        done = original(left, right)
        shapes.append(done.shape)
        return done

    monkeypatch.setattr(matrices, "product", product)
    return shapes


@pytest.mark.parametrize("left_turned", [False, True])
@pytest.mark.parametrize("right_turned", [False, True])
def test_a_large_product_is_that_of_pytorch(
    left_turned: bool, right_turned: bool, by_one_dnn: list[torch.Size]
) -> None:
    left = torch.randn(INNER, ROWS).t() if left_turned else torch.randn(ROWS, INNER)
    right = torch.randn(COLUMNS, INNER).t() if right_turned else torch.randn(INNER, COLUMNS)
    with torch.no_grad():
        torch.testing.assert_close(matrices.matmul(left, right), left @ right, rtol=1e-5, atol=1e-4)
    assert by_one_dnn == [(ROWS, COLUMNS)]


def test_rows_may_have_more_axes(by_one_dnn: list[torch.Size]) -> None:
    left, right = torch.randn(ROWS, 1, INNER), torch.randn(INNER, COLUMNS)
    with torch.no_grad():
        torch.testing.assert_close(matrices.matmul(left, right), left @ right, rtol=1e-5, atol=1e-4)
    assert by_one_dnn == [(ROWS, 1, COLUMNS)]


def test_a_product_with_a_gradient_has_one(by_one_dnn: list[torch.Size]) -> None:
    left, right = torch.randn(ROWS, INNER, requires_grad=True), torch.randn(INNER, COLUMNS)
    matrices.matmul(left, right).sum().backward()
    torch.testing.assert_close(left.grad, right.sum(1).expand(ROWS, INNER), rtol=1e-5, atol=1e-4)
    assert not by_one_dnn


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.randn(4, 8), torch.randn(8, 4)),
        (torch.randn(ROWS, INNER).bfloat16(), torch.randn(INNER, COLUMNS).bfloat16()),
        (torch.randn(4, ROWS, INNER), torch.randn(4, INNER, COLUMNS)),
        (torch.randn(0, INNER), torch.randn(INNER, COLUMNS)),
        (torch.randn(ROWS, INNER), torch.randn(INNER)),
    ],
    ids=["small", "bf16", "batches", "empty", "vector"],
)
def test_others_are_left_to_pytorch(left: torch.Tensor, right: torch.Tensor, by_one_dnn: list[torch.Size]) -> None:
    with torch.no_grad():
        assert torch.equal(matrices.matmul(left, right), left @ right)
    assert not by_one_dnn
