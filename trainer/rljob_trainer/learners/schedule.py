"""Megatron's schedule over the micro-batches of a model, which it takes through all pipeline stages."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func

from rljob_trainer.learners.attention import PackedTokens


class Tokens(Protocol):
    """A micro-batch on the device, with whatever the outcome needs besides."""

    @property
    def tokens_N(self) -> torch.Tensor: ...

    @property
    def packed(self) -> PackedTokens: ...


Outcome = Callable[..., Any]
"""called with a micro-batch and what the model's last stage returned for it"""


class Batches(Protocol):
    """The micro-batches of a step, which may be brought to the device one after the other."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Tokens]: ...


def run(model: Any, batches: Batches, outcome: Outcome, *, forward_only: bool) -> list[Any]:
    """Run all micro-batches; return what `outcome` gave for each, on the last stage."""

    def step(iterator: Iterator[Tokens], part: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
        batch = next(iterator)
        return part(batch.tokens_N, batch.packed), partial(outcome, batch)

    results = get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=iter(batches),
        model=model,
        num_microbatches=len(batches),
        seq_length=1,  # stages send each other the shape: variable_seq_lengths
        micro_batch_size=1,
        forward_only=forward_only,
        collect_non_loss_data=forward_only,
    )
    return list(results)
