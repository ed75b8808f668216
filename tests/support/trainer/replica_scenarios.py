"""What learner ranks do in tests of parameters that several of them hold whole."""

from dataclasses import dataclass

import torch
from megatron.core import parallel_state

from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank.optimizer.replicas import differing
from rljob_trainer.learners.rank.rank import LearnerRank
from support.trainer.learner_scenarios import Steps, _step


@dataclass(frozen=True)
class Whole:
    """Parameters that a rank holds whole."""

    coordinate: int
    """the rank's pipeline stage: others have other parameters"""
    parameters: dict[str, torch.Tensor]


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
    return Whole(parallel_state.get_pipeline_model_parallel_rank(), whole)


def noticed(
    rank: int, world_size: int, port: int, config: LearnerConfig, part_of_name: str
) -> tuple[list[str], list[str]]:
    """Return which parameters differ between tensor ranks, before and after the last rank has changed one."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    before = differing(learner._ddp)
    if rank == world_size - 1:
        (changed,) = [p for name, p in learner._ddp[0].named_parameters() if part_of_name in name]
        changed.data[[0, 1]] = torch.tensor([2.0, 3.0])
        changed.data[[0, 1]] = changed.data[[1, 0]]
    return before, differing(learner._ddp)
