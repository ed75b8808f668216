"""What the ranks of the tests of families do: as in `learner_scenarios.py`, for many models one after the other."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models import backends

from rljob_trainer.batches.packing import TrainingSequence
from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank import process
from rljob_trainer.learners.rank.attention.attention import PaddedKernel
from rljob_trainer.learners.rank.experts.grouped_experts import GroupedExperts
from rljob_trainer.learners.rank.rank import LearnerRank
from rljob_trainer.metrics import OptimizerStep
from support.trainer.learner_scenarios import Steps, _gradients, _share, _step, train_and_export, weights


def export_train_export(
    rank: int, world_size: int, port: int, config: LearnerConfig, steps: Steps, max_tokens: int
) -> tuple[int, dict[str, torch.Tensor], list[OptimizerStep], dict[str, torch.Tensor]]:
    """Take the steps off policy; return how many parameters this rank has, the weights before them, their metrics, and
    the weights after the last one.
    """
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    parameters, before = sum(each.numel() for chunk in learner._chunks for each in chunk.parameters()), weights(learner)
    return parameters, before, [_step(learner, each, max_tokens, True) for each in steps], weights(learner)


def one_after_the_other(
    rank: int, world_size: int, port: int, scenario: Callable[..., Any], cases: list[tuple[Any, ...]]
) -> list[Any]:
    """Run another scenario with each of these arguments in the same processes: they take seconds to start."""
    meeting = dist.TCPStore("127.0.0.1", port, world_size, is_master=rank == 0)
    results = []
    for number, arguments in enumerate(cases):
        store = dist.PrefixStore(f"case {number}", meeting)
        with patch.object(process, "meet", return_value=store):
            results.append(scenario(rank, world_size, port, *arguments))
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    return results


def called(rank: int, world_size: int, port: int, scenario: Callable[..., Any], *arguments: Any) -> Any:
    """Run another scenario: for cases that `one_after_the_other` runs with a scenario each."""
    return scenario(rank, world_size, port, *arguments)


def train_grouped(
    rank: int, world_size: int, port: int, config: LearnerConfig, steps: Steps, max_tokens: int, off_policy: bool
) -> tuple[Any, int]:
    """Train as `train_and_export`, with the experts of a GPU; return how often they were used, too."""
    with (
        patch.object(backends, "SequentialMLP", GroupedExperts),
        patch.object(GroupedExperts, "forward", autospec=True, side_effect=GroupedExperts.forward) as used,
    ):
        return train_and_export(rank, world_size, port, config, steps, max_tokens, off_policy), used.call_count


def kept_bytes(rank: int, world_size: int, port: int, config: LearnerConfig, sequences: list[TrainingSequence]) -> int:
    """Return how much memory a step keeps for its backward pass, without weights."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    known = {buffer.param_data.untyped_storage().data_ptr() for chunk in learner._ddp for buffer in chunk.buffers}
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        learner.train(_share(learner, sequences, 10_000))
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in kept}
    return sum(size for place, size in storages.items() if place not in known)


def times_attended(
    rank: int, world_size: int, port: int, config: LearnerConfig, sequences: list[TrainingSequence]
) -> int:
    """Return how often the layers of a step attend, forward and backward."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    with patch.object(PaddedKernel, "__call__", autospec=True, side_effect=PaddedKernel.__call__) as attend:
        learner.train(_share(learner, sequences, 10_000))
    return attend.call_count


def embedding_scale(rank: int, world_size: int, port: int, config: LearnerConfig) -> float | None:
    """Return what the policy multiplies embeddings by."""
    (chunk,) = LearnerRank(config, rank, world_size, "127.0.0.1", port)._chunks
    return chunk.embedding_scale


def logprobs_and_gradients(
    rank: int, world_size: int, port: int, config: LearnerConfig, sequences: list[TrainingSequence]
) -> tuple[list[Any], OptimizerStep, dict[str, torch.Tensor]]:
    """Return each sequence's log-probabilities, and what `gradients` returns, by the same learner (one rank only)."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    (batch,) = _share(learner, [replace(each, index=index) for index, each in enumerate(sequences)], 10_000)
    (logprobs_R,) = learner.logprobs((batch,))
    found = {int(index): logprobs_R[batch.sequences_R == place] for place, index in enumerate(batch.indices_S)}
    return [found[index] for index in range(len(sequences))], *_gradients(learner, sequences)
