"""A rank's range of a parameter as tensors of Megatron's checkpoint format, which know their place in the whole model.

    range of a parameter ─► its tensors in a checkpoint (a gated MLP has two) ─► boxes of them

Every data-parallel rank writes and reads its own range, so nothing is gathered, and nothing is read twice. On disk it
is Megatron's `fully_reshardable`, in smaller parts: any layout reads what any other has written.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

from rljob_trainer.learners.rank.checkpoint.boxes import boxes

LARGEST = 2**24
"""numbers of a piece: who needs a part of it reads all of it"""


def pieces(
    whole: ShardedTensor | ShardedTensorFactory, key: str, dtype: torch.dtype, numbers: range
) -> Iterator[tuple[range, ShardedTensor]]:
    """Yield the pieces that hold a range of a parameter's numbers, without data, each with its part of the range.

    `whole` is the parameter as its module describes it, `key` the name that the pieces get.
    """
    replica = (*whole.replica_id[:2], 0)  # each data-parallel rank has a separate range
    for first, stored in _stored(whole, key, dtype):
        before = stored.prepend_axis_num
        start = max(numbers.start, first)
        for box in boxes(
            stored.local_shape, start - first, min(numbers.stop, first + prod(stored.local_shape)) - first, LARGEST
        ):
            inner = zip(stored.global_offset[before:], box.offset, strict=True)
            yield (
                range(start - numbers.start, start - numbers.start + box.size),
                replace(
                    stored,
                    data=None,
                    local_shape=(1,) * before + box.shape,
                    global_offset=(*stored.global_offset[:before], *(own + of_box for own, of_box in inner)),
                    axis_fragmentations=None,  # not a grid
                    prepend_axis_num=0,
                    replica_id=replica,
                ),
            )
            start += box.size


def _stored(
    whole: ShardedTensor | ShardedTensorFactory, key: str, dtype: torch.dtype
) -> Iterator[tuple[int, ShardedTensor]]:
    """Yield the tensors that a checkpoint has of a parameter, each with the place of its first number in it."""
    if isinstance(whole, ShardedTensor):
        yield 0, replace(whole, key=key, data=None, dtype=dtype)
        return
    parameter = torch.empty(whole.data.shape, dtype=dtype, device="meta")
    for stored in nested_values(whole.build_fn(key, parameter, whole.replica_id, None)):
        if stored.data._base is not parameter or not stored.data.is_contiguous():
            raise NotImplementedError(f"{whole.key}: its numbers lie in another order in a checkpoint")
        yield stored.data.storage_offset(), stored
