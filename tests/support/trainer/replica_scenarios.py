"""What learner ranks do in tests of parameters that several of them hold whole."""

from dataclasses import dataclass

import torch
from megatron.core import parallel_state

from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.copies import UnequalCopy
from rljob_trainer.learners.rank.rank import LearnerRank
from support.trainer.learner_scenarios import Steps, _step


@dataclass(frozen=True)
class Whole:
    """Parameters that a rank holds whole."""

    coordinate: int
    """the rank's pipeline stage: others have other parameters"""
    parameters: dict[str, torch.Tensor]
    unequal: tuple[UnequalCopy, ...]
    """what the rank says of copies"""


def train_with_noise(rank: int, world_size: int, port: int, config: LearnerConfig, steps: Steps, noise: float) -> Whole:
    """Take the steps; return the parameters that tensor ranks do not share out.

    Each rank disturbs each of its gradients by this relative size, as kernels do that add in another order each time.
    """
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    generator = torch.Generator().manual_seed(rank)

    def disturbed(gradient: torch.Tensor | None) -> torch.Tensor | None:
        if gradient is None:  # it was added to `main_grad` already
            return None
        return gradient * (1.0 + noise * torch.randn(gradient.shape, generator=generator).to(gradient.dtype))

    named = [each for chunk in learner._ddp for each in chunk.named_parameters()]
    for _, parameter in named:
        parameter.register_hook(disturbed)
    for sequences in steps:
        _step(learner, sequences, 10_000, False)
    whole = {
        name: parameter.detach().clone()
        for name, parameter in named
        if not parameter.tensor_model_parallel and "experts" not in name
    }
    return Whole(parallel_state.get_pipeline_model_parallel_rank(), whole, learner.unequal_copies())


def noticed(
    rank: int, world_size: int, port: int, config: LearnerConfig, changed_on: int, part_of_name: str
) -> tuple[tuple[UnequalCopy, ...], tuple[UnequalCopy, ...]]:
    """Return which copies are not equal, before and after one rank has exchanged two numbers of a parameter or buffer.

    The sum of its bits stays the same.
    """
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    before = learner.unequal_copies()
    if rank == changed_on:
        chunk = learner._ddp[0]
        held = [*chunk.named_parameters(), *chunk.named_buffers()]
        numbers = next(tensor for name, tensor in held if part_of_name in name).data.view(-1)
        numbers[:2] = torch.tensor([2.0, 3.0])
        numbers[:2] = numbers[[1, 0]]
    return before, learner.unequal_copies()
