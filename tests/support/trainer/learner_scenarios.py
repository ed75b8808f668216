"""What the ranks of the learner's tests do. Each function runs once in every rank; results travel back by pickle."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from rljob_trainer.batches.batches import StepBatch
from rljob_trainer.batches.packing import MicroBatch, Packing, TrainingSequence, pack
from rljob_trainer.learners.config import LearnerConfig, LossSettings
from rljob_trainer.learners.objectives import objective
from rljob_trainer.learners.rank.attention.layout import token_layout
from rljob_trainer.learners.rank.checkpoint.draft import write_now
from rljob_trainer.learners.rank.head.head_settings import VocabularyShard
from rljob_trainer.learners.rank.head.logprobs import logprobs_and_entropy
from rljob_trainer.learners.rank.rank import LearnerRank
from rljob_trainer.learners.rank.replacements import matrices
from rljob_trainer.metrics import OptimizerStep
from rljob_trainer.rundir.retries import PATIENT
from support.trainer.learner_data import engine_logprobs

Steps = list[list[TrainingSequence]]


def save(learner: LearnerRank, directory: Path) -> None:
    """Write a whole checkpoint into a directory, as the driver has it written."""
    directory.mkdir(parents=True, exist_ok=True)
    learner.stage(directory)
    write_now(learner._staged(), PATIENT)


def load(learner: LearnerRank, directory: Path) -> None:
    """Continue from a checkpoint."""
    learner.load(directory)
    learner.spread()


def train(
    rank: int, world_size: int, port: int, config: LearnerConfig, steps: Steps, max_tokens: int, off_policy: bool
) -> list[OptimizerStep]:
    """Take the steps; return their metrics."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    return [_step(learner, sequences, max_tokens, off_policy) for sequences in steps]


def train_batches(
    rank: int, world_size: int, port: int, config: LearnerConfig, batches: Sequence[StepBatch]
) -> list[OptimizerStep]:
    """Take the optimizer steps that a driver has made; the old policy is the learner before each. Return metrics."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    place = learner.layout.data_rank(rank)
    return [learner.train(batch.micro_batches_by_rank[place], None) for batch in batches]


def train_by_one_dnn(
    rank: int, world_size: int, port: int, config: LearnerConfig, steps: Steps, products: bool
) -> tuple[list[OptimizerStep], int]:
    """Take the steps with all products by oneDNN, or none; return their metrics, and how many were."""
    smallest = 1 if products else 2**62
    with (
        patch.object(matrices, "SMALLEST", smallest),
        patch.object(matrices, "product", wraps=matrices.product) as product,
    ):
        return train(rank, world_size, port, config, steps, 10_000, False), product.call_count


def train_critic(
    rank: int, world_size: int, port: int, config: LearnerConfig, steps: Steps, max_tokens: int
) -> tuple[list[OptimizerStep], list[dict[int, Any]]]:
    """Take the critic's steps; return their metrics, and before each and after the last the values by sequence."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    values = [_values_by_sequence(learner, steps[0], max_tokens)]
    metrics = []
    for sequences in steps:
        metrics.append(learner.train_critic(_share(learner, sequences, max_tokens)))
        values.append(_values_by_sequence(learner, steps[0], max_tokens))
    return metrics, values


def one_step_with_each_loss(
    rank: int,
    world_size: int,
    port: int,
    config: LearnerConfig,
    losses: list[LossSettings],
    sequences: list[TrainingSequence],
) -> list[OptimizerStep]:
    """Take one step after the other, each with a loss of its own; return their metrics.

    What the engine says is the old policy's, unless it is what the loss corrects.
    """
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    metrics = []
    for loss in losses:
        learner._config = replace(config, loss=loss)
        learner._objective = objective.load(loss.objective)
        metrics.append(_step(learner, sequences, 64, loss.importance is None))
    return metrics


def kl_after_a_step(
    rank: int, world_size: int, port: int, config: LearnerConfig, sequences: list[TrainingSequence]
) -> tuple[list[Any], list[Any], OptimizerStep]:
    """Return the divergence from the reference before and after a step, and the step's metrics."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    share = _share(learner, sequences, 64)
    before = learner.kl(share, "k3", clamp=True)
    metrics = learner.train(share, None)
    return before, learner.kl(share, "k3", clamp=True), metrics


def distil(
    rank: int, world_size: int, port: int, config: LearnerConfig, sequences: list[TrainingSequence]
) -> tuple[dict[int, Any], OptimizerStep]:
    """Ask the teacher about sequences and take a step with what it says; return that by their indices, and the step."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    share = _share(learner, sequences, 64)
    own = {
        int(index): divergence_R[batch.sequences_R == number]
        for batch, divergence_R in zip(share, learner.divergence(share), strict=False)
        for number, index in enumerate(batch.indices_S)
    }
    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, own)
    found = {index: divergence for each in gathered for index, divergence in each.items()}
    taught = [replace(each, advantage=-found[each.index]) for each in sequences]
    return found, _step(learner, taught, 64, False)


def train_and_export(
    rank: int,
    world_size: int,
    port: int,
    config: LearnerConfig,
    steps: Steps,
    max_tokens: int = 10_000,
    off_policy: bool = False,
) -> tuple[list[OptimizerStep], dict[str, torch.Tensor]]:
    """Take the steps; return their metrics and the weights after the last one."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    return [_step(learner, sequences, max_tokens, off_policy) for sequences in steps], weights(learner)


def train_as_chosen_before(
    rank: int, world_size: int, port: int, config: LearnerConfig, steps: Steps, max_tokens: int
) -> list[OptimizerStep]:
    """Measure the second step's samples, then take both steps; return their metrics."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    first, second = (_share(learner, sequences, max_tokens) for sequences in steps)
    learner.logprobs(second, 1)
    return [learner.train(first, engine_logprobs(first), 0), learner.train(second, engine_logprobs(second), 1)]


def zeros(rank: int, world_size: int, port: int, config: LearnerConfig) -> tuple[str, ...]:
    """Return the names of tensors that hold nothing but zeros."""
    return LearnerRank(config, rank, world_size, "127.0.0.1", port).zeros()


def train_save_train(
    rank: int, world_size: int, port: int, config: LearnerConfig, directory: Path, before: Steps, after: Steps
) -> tuple[list[OptimizerStep], dict[str, torch.Tensor]]:
    """Take steps, save, take more; return the metrics of those and the weights."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    for sequences in before:
        _step(learner, sequences, 64, False)
    save(learner, directory)
    return [_step(learner, sequences, 64, False) for sequences in after], weights(learner)


def beside_a_gpu(rank: int, world_size: int, port: int, scenario: Callable[..., Any], *args: Any) -> Any:
    """Run another scenario where PyTorch says that the machine has a GPU, which the learner is not to use."""

    def set_rng_state(state: torch.Tensor) -> None:
        raise RuntimeError("RNG state is wrong size")  # what a GPU says of a CPU's

    torch.cuda.is_available, torch.cuda.set_rng_state = lambda: True, set_rng_state
    return scenario(rank, world_size, port, *args)


def load_train(
    rank: int, world_size: int, port: int, config: LearnerConfig, directory: Path, after: Steps
) -> tuple[list[OptimizerStep], dict[str, torch.Tensor]]:
    """Load and take steps; return their metrics and the weights."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    load(learner, directory)
    return [_step(learner, sequences, 64, False) for sequences in after], weights(learner)


def load_train_save_train(
    rank: int,
    world_size: int,
    port: int,
    config: LearnerConfig,
    directory: Path,
    before: Steps,
    again: Path,
    after: Steps,
) -> tuple[list[OptimizerStep], dict[str, torch.Tensor]]:
    """Load, take steps, save, take more; return the metrics of those and the weights."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    load(learner, directory)
    for sequences in before:
        _step(learner, sequences, 64, False)
    save(learner, again)
    return [_step(learner, sequences, 64, False) for sequences in after], weights(learner)


def critic_train_save_train(
    rank: int, world_size: int, port: int, config: LearnerConfig, directory: Path, before: Steps, after: Steps
) -> list[Any]:
    """Train policy and critic, save, go on; return what both say of the steps after it, and the weights of both."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    for sequences in before:
        _step_of_both(learner, sequences)
    save(learner, directory)
    return [*(_step_of_both(learner, sequences) for sequences in after), weights(learner), _critic_weights(learner)]


def critic_load_train(
    rank: int, world_size: int, port: int, config: LearnerConfig, directory: Path, after: Steps
) -> list[Any]:
    """Load and go on; return the same."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    load(learner, directory)
    return [*(_step_of_both(learner, sequences) for sequences in after), weights(learner), _critic_weights(learner)]


def load_error(rank: int, world_size: int, port: int, config: LearnerConfig, directory: Path) -> str:
    """Return what loading raises."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    try:
        load(learner, directory)
    except ValueError as error:
        return str(error)
    return ""


def save_and_look(
    rank: int,
    world_size: int,
    port: int,
    config: LearnerConfig,
    directory: Path,
    before: Steps,
    after: list[TrainingSequence],
) -> dict[str, Any]:
    """Take steps and save; return the learner's state, and the metrics of one more step."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    for sequences in before:
        _step(learner, sequences, 64, False)
    save(learner, directory)
    return look(learner, after)


def load_and_look(
    rank: int, world_size: int, port: int, config: LearnerConfig, directory: Path, after: list[TrainingSequence]
) -> dict[str, Any]:
    """Load; return the learner's state, and the metrics of one more step."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    load(learner, directory)
    return look(learner, after)


def look(learner: LearnerRank, after: list[TrainingSequence]) -> dict[str, Any]:
    """Return weights, masters and moments by their Hugging Face names, counters, and the metrics of one more step."""
    state: dict[str, Any] = {name: _whole(learner, name) for name in ("master", "exp_avg", "exp_avg_sq")}
    state["weights"] = weights(learner)
    parts = learner._optimizer.megatron.chained_optimizers
    counts = {each["step"].item() for part in parts for each in part.optimizer.state.values()}
    state["counts"] = (learner.step, sorted(counts))
    return state | {"next": _step(learner, after, 64, False), "after": weights(learner)}


def _whole(learner: LearnerRank, name: str) -> dict[str, torch.Tensor]:
    """Return a part of the optimizer's state as whole fp32 tensors: put in the place of the weights, and exported.

    Weights in bf16 take three turns, of 8 of the 24 bits each.
    """
    parts = learner._optimizer.megatron.chained_optimizers
    parameters = [each for chunk in learner._chunks for each in chunk.parameters()]
    kept = [parameter.detach().clone() for parameter in parameters]
    rests = [torch.zeros(parameter.numel()) for parameter in parameters]
    for parameter, whole in zip(parameters, rests, strict=True):
        part = parts[0 if getattr(parameter, "allreduce", True) else -1]  # experts have an optimizer of their own
        if parameter in part.model_param_group_index_map:
            own = part._get_model_param_range_map(parameter)["param"]
            held = part._get_main_param_and_optimizer_states(parameter)
            whole[own.start : own.end] = held["param" if name == "master" else name].detach()
        dist.all_reduce(whole, group=part.data_parallel_group)
    found: dict[str, torch.Tensor] = {}
    for _ in range(3):
        for parameter, rest in zip(parameters, rests, strict=True):
            parameter.data.copy_(rest.view_as(parameter))
            rest -= parameter.detach().float().flatten()
        for key, tensor in weights(learner).items():
            found[key] = found.get(key, 0) + tensor.float()
    for parameter, value in zip(parameters, kept, strict=True):
        parameter.data.copy_(value)
    return found


def write_hf(rank: int, world_size: int, port: int, config: LearnerConfig, directory: Path) -> None:
    LearnerRank(config, rank, world_size, "127.0.0.1", port).write_hf(directory)


def gradients(
    rank: int, world_size: int, port: int, config: LearnerConfig, sequences: list[TrainingSequence]
) -> tuple[OptimizerStep, dict[str, torch.Tensor]]:
    """Take one step; return its metrics and the clipped gradients by their Hugging Face names (one rank only)."""
    return _gradients(LearnerRank(config, rank, world_size, "127.0.0.1", port), sequences)


def _gradients(
    learner: LearnerRank, sequences: list[TrainingSequence]
) -> tuple[OptimizerStep, dict[str, torch.Tensor]]:
    metrics = _step(learner, sequences, 10_000, False)
    (model,) = learner._chunks
    converted = [
        learner._bridge._weight_to_hf_format(name, parameter.main_grad)
        for name, parameter in learner._bridge.named(model).named_parameters()
        if parameter.requires_grad
    ]
    return metrics, {name: grad.clone() for names, grads in converted for name, grad in zip(names, grads, strict=True)}


def head_gradients(
    rank: int, world_size: int, port: int, config: LearnerConfig, sequences: list[TrainingSequence]
) -> tuple[OptimizerStep, torch.Tensor, list[int]]:
    """Take one step on one micro-batch; return its metrics, the gradient of the hidden states that the head reads, and
    which of them predict a token that is trained on.
    """
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    seen: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        if output.requires_grad:  # and not the reference's forward pass
            output.register_hook(lambda gradient: seen.append(gradient.reshape(-1, gradient.shape[-1]).clone()))

    learner._chunks[-1].decoder.final_layernorm.register_forward_hook(keep)
    (batch,) = _share(learner, sequences, 10_000)
    metrics = learner.train((batch,), None)
    (gradient,) = seen
    return metrics, gradient, token_layout(batch).positions_R.tolist()


def poisoned_step(
    rank: int,
    world_size: int,
    port: int,
    config: LearnerConfig,
    good: list[TrainingSequence],
    bad: list[TrainingSequence],
) -> dict[str, Any]:
    """Take a good step, a bad one and the good one again; return what is known of each."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    first = _step(learner, good, 64, False)
    before = weights(learner), _optimizer_state(learner)
    poisoned = _step(learner, bad, 64, False)
    after = weights(learner), _optimizer_state(learner)
    last = _step(learner, good, 64, False)
    return {
        "first": first, "poisoned": poisoned, "last": last, "before": before, "after": after, "skipped": learner.skipped
    }  # fmt: skip


def logprobs(
    rank: int, world_size: int, port: int, config: LearnerConfig, sequences: list[TrainingSequence], max_tokens: int
) -> list[Any]:
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    return list(learner.logprobs(_share(learner, sequences, max_tokens)))


def two_updates_on_one_rollout(
    rank: int, world_size: int, port: int, config: LearnerConfig, sequences: list[TrainingSequence]
) -> list[OptimizerStep]:
    """Measure old log-probabilities once, then update twice on the same samples."""
    learner = LearnerRank(config, rank, world_size, "127.0.0.1", port)
    share = _share(learner, sequences, 64)
    old = learner.logprobs(share)
    return [learner.train(share, old), learner.train(share, old)]


def parallel_head(
    rank: int, world_size: int, port: int, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return log-probabilities, entropies, and the gradients of a fixed mix of both, with the vocabulary shared out."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    rows = -(-len(weight) // world_size)
    start = rank * rows
    own = torch.zeros(rows, weight.shape[1])
    size = min(rows, len(weight) - start)
    own[:size] = weight[start : start + size]
    own[size:] = 1e3  # padding that must not matter
    own.requires_grad_()
    hidden = hidden.clone().requires_grad_()
    shard = VocabularyShard(start, size, dist.group.WORLD)
    lp, entropy = logprobs_and_entropy(
        hidden, own, targets, shard, temperature=0.7, entropy="differentiated", chunk_rows=4
    )
    mix = torch.linspace(-1, 1, len(targets))
    ((lp * mix).sum() + (entropy * mix.square()).sum()).backward()
    assert hidden.grad is not None and own.grad is not None
    return lp.detach(), entropy.detach(), hidden.grad, own.grad[:size]


def weights(learner: LearnerRank) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.export()}


def _step(learner: LearnerRank, sequences: list[TrainingSequence], max_tokens: int, off_policy: bool) -> OptimizerStep:
    share = _share(learner, sequences, max_tokens)
    return learner.train(share, engine_logprobs(share) if off_policy else None)


def _share(learner: LearnerRank, sequences: list[TrainingSequence], max_tokens: int) -> tuple[MicroBatch, ...]:
    layout = learner.layout
    in_step, multiple = layout.data_ranks_meet, layout.micro_batch_multiple
    shares = pack(sequences, Packing(layout.data, max_tokens, in_step=in_step, multiple=multiple))
    return shares[layout.data_rank(learner.rank)]


def _optimizer_state(learner: LearnerRank) -> tuple[list[torch.Tensor], int]:
    parts = learner._optimizer.megatron.chained_optimizers  # experts have one of their own
    states = [state for part in parts for state in part.optimizer.state.values()]
    tensors = [tensor.clone() for state in states for tensor in state.values()]
    return tensors, learner._optimizer.schedule.num_steps


def _values_by_sequence(learner: LearnerRank, sequences: list[TrainingSequence], max_tokens: int) -> dict[int, Any]:
    """Return the critic's values of this share's sequences by their numbers, on the ranks that hold them."""
    numbered = [replace(sequence, index=index) for index, sequence in enumerate(sequences)]
    share = _share(learner, numbered, max_tokens)
    return {
        index: values_R[batch.sequences_R == place]
        for batch, values_R in zip(share, learner.values(share), strict=False)
        for place, index in enumerate(batch.indices_S.tolist())
    }


def _step_of_both(learner: LearnerRank, sequences: list[TrainingSequence]) -> list[float]:
    critic = learner.train_critic(_share(learner, sequences, 64))
    policy = _step(learner, sequences, 64, False)
    return [critic.loss, critic.grad_norm, critic.learning_rate, policy.loss, policy.grad_norm, policy.learning_rate]


def _critic_weights(learner: LearnerRank) -> list[torch.Tensor]:
    return (
        [each.detach().clone() for chunk in learner._critic.chunks for each in chunk.parameters()]
        if learner._critic
        else []
    )
