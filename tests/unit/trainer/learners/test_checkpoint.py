"""What is given to Megatron to be written."""

import io

import pytest
import torch

from rljob_trainer.learners.checkpoint import narrow


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_view_of_a_buffer_is_written_alone_and_not_copied(dtype: torch.dtype) -> None:
    buffer = torch.arange(100_000).to(dtype)
    view = buffer[1000:1600].view(20, 30)
    narrowed = narrow(view)
    assert torch.equal(narrowed, view) and narrowed.dtype == dtype
    assert narrowed.data_ptr() == view.data_ptr()
    assert narrowed.untyped_storage().nbytes() == view.numel() * view.itemsize
    file = io.BytesIO()
    torch.save(narrowed, file)
    assert file.tell() < 10_000


@pytest.mark.parametrize("tensor", [torch.ones(9)[4], torch.zeros(0, 4), torch.ones(9, requires_grad=True)[2:4]])
def test_any_tensor_keeps_its_numbers(tensor: torch.Tensor) -> None:
    assert torch.equal(narrow(tensor), tensor)


def test_what_is_not_in_one_piece_is_left_to_megatron() -> None:
    turned = torch.zeros(3, 4)[1:].t()
    assert narrow(turned) is turned
