"""Megatron's schedule over the micro-batches of a model, which it takes through all pipeline stages."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func

from rljob_trainer.learners.rank.attention.attention import PackedTokens


class Tokens(Protocol):
    """A micro-batch on the device, with the other values that the outcome needs."""

    @property
    def tokens_N(self) -> torch.Tensor: ...

    @property
    def packed(self) -> PackedTokens: ...


Outcome = Callable[..., Any]
"""called with a micro-batch and what the model's last stage returned for it"""


Item = TypeVar("Item")


class Batches(Protocol):
    """The micro-batches of a step, which may be brought to the device one after the other."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Tokens]: ...


def run(chunks: Sequence[Any], batches: Batches, outcome: Outcome, *, forward_only: bool) -> list[Any]:
    """Run all micro-batches; return what `outcome` gave for each, on the last stage.

    `chunks` are this rank's of the model. With several of them the number of micro-batches must be a multiple of the
    pipeline's size.
    """

    def step(iterator: Iterator[Tokens], part: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        batch = next(iterator)
        return part(batch.tokens_N, batch.packed), partial(outcome, batch)

    results = get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=one_for_each(iter(batches), len(chunks)),
        model=list(chunks),
        num_microbatches=len(batches),
        seq_length=1,  # stages send each other the shape: variable_seq_lengths
        micro_batch_size=1,
        forward_only=forward_only,
        collect_non_loss_data=forward_only,
    )
    return list(results)


def one_for_each(items: Iterator[Item], count: int) -> list[Iterator[Item]]:
    """Return iterators that each yield all items, which are made once, and kept until the last iterator has them.

    `itertools.tee` keeps 57 of them at least.
    """
    waiting: list[deque[Item]] = [deque() for _ in range(count)]

    def yielded(own: deque[Item]) -> Iterator[Item]:
        while True:
            if not own:
                try:
                    item = next(items)
                except StopIteration:
                    return
                for each in waiting:
                    each.append(item)
                del item
            yield own.popleft()

    return [yielded(own) for own in waiting]
