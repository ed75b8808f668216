"""One rank of the learner: Megatron-core on gloo and CPU cores, or on NCCL and a GPU. No Ray, no engines.

Methods are collective: every rank calls the same ones in the same order, ranks of one data-parallel share with the same
micro-batches. `learners/group.py` sees to that. Results that only some ranks hold say so.
"""

import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from megatron.core import parallel_state

from rljob_trainer.batches.packing import MicroBatch
from rljob_trainer.learners.config import Estimator, LearnerConfig, layout
from rljob_trainer.learners.copies import UnequalCopy
from rljob_trainer.learners.link_report import LinkReport
from rljob_trainer.learners.objectives import objective
from rljob_trainer.learners.rank import process, schedule
from rljob_trainer.learners.rank.attention.rope import Rope
from rljob_trainer.learners.rank.checkpoint import checkpoint, draft
from rljob_trainer.learners.rank.checkpoint.draft import Draft
from rljob_trainer.learners.rank.checkpoint.moved import Moved
from rljob_trainer.learners.rank.checkpoint.staging import Staging
from rljob_trainer.learners.rank.critic import Critic
from rljob_trainer.learners.rank.device_batches import Batch, Batches, Logprobs_R
from rljob_trainer.learners.rank.experts.routers import ExpertRouters, RouterPass
from rljob_trainer.learners.rank.loss.loss import kl_estimate, policy_loss
from rljob_trainer.learners.rank.loss.reduction import Sums, over_ranks
from rljob_trainer.learners.rank.model.model import PolicyModel, build_chunks
from rljob_trainer.learners.rank.optimizer.device_memory import residence
from rljob_trainer.learners.rank.optimizer.offloadable_tensors import memory_of
from rljob_trainer.learners.rank.optimizer.optimizer import Optimizer, data_parallel
from rljob_trainer.learners.rank.optimizer.replicas import unequal_copies
from rljob_trainer.learners.rank.policy_head import PolicyHead
from rljob_trainer.learners.rank.replacements.cpu import megatron_on_cpu
from rljob_trainer.learners.rank.speed import Speed
from rljob_trainer.learners.rank.teacher import Teacher
from rljob_trainer.learners.rank.weights import export
from rljob_trainer.learners.rank.weights.bridges import bridge
from rljob_trainer.learners.rank.weights.reference import ReferenceWeights
from rljob_trainer.learners.rank.weights.weight_files import further_tensors
from rljob_trainer.learners.rank_calls import Rank, Written
from rljob_trainer.learners.skips import Skips, after
from rljob_trainer.metrics import OptimizerStep
from rljob_trainer.processes.kernel_archive import kernels_of
from rljob_trainer.rundir.retries import Patience


class LearnerRank(Rank):
    """Holds this rank's part of the policy and trains it."""

    def __init__(
        self, config: LearnerConfig, rank: int, world_size: int, master_address: str, master_port: int
    ) -> None:
        """Join the other ranks, load the checkpoint, make the optimizer. Raises UnsupportedModelError."""
        self._config = config
        self.rank = rank
        self.layout = layout(config, world_size)
        self._objective = objective.load(config.loss.objective)
        self._runtime: Callable[[], AbstractContextManager[None]] = (
            megatron_on_cpu if config.device == "cpu" else nullcontext
        )
        self._kernels = kernels_of(os.environ, config.kernels)
        self._kernels.unpack()
        self.device = process.prepare(config, rank)
        with self._runtime():
            self._links = process.join(config, rank, world_size, master_address, master_port, self.device)
            self._bridge = bridge(config)
            self._chunks = build_chunks(self._bridge, PolicyModel, config.device)
            self._bridge.load_weights(list(self._chunks), str(config.checkpoint_dir))
            for chunk in self._chunks:
                chunk.to(self.device)
            self._head = PolicyHead(self._chunks[-1], self._bridge.vocab_size, config.loss.temperature)
            self._reference = ReferenceWeights(self._chunks) if config.keeps_reference else None
            self._teacher = Teacher(config, config.teacher_dir, self.device) if config.teacher_dir else None
            self._ddp = data_parallel(self._chunks)
            self._optimizer = Optimizer(self._ddp, config.optimizer, config.total_steps, config.precision)
        routed = self._bridge.config
        self._routers = ExpertRouters(config.experts, routed, self.device) if routed.num_moe_experts else None
        self._speed = Speed.of(self._bridge.hf_config, self.device, world_size)
        self._rope = Rope(self._bridge.hf_config, self._bridge.config.kv_channels, self.device)
        with self._runtime():
            self._critic = Critic(config, config.critic, self._rope, self.device) if config.critic else None
        critic = [(self._critic.chunks, self._critic.optimizer)] if self._critic else []
        self._state = residence(config.leaves, [(self._ddp, self._optimizer), *critic], self.device)
        self._staging = Staging(memory_of(self.device))
        self._moved = Moved()
        self._patience = Patience(config.longest_outage_s)
        self._draft: Draft | None = None
        """what is to be written of the last checkpoint"""
        self.step = 0
        """optimizer steps taken"""
        self.skipped = 0
        """optimizer steps not taken because the gradient was not finite"""
        self.skips: Skips = ()

    def links(self) -> LinkReport | None:
        """Return what was measured of the network between the ranks; None: there is one rank."""
        return self._links

    def recent_skips(self) -> Skips:
        """Return which of the last optimizer steps were not taken."""
        return self.skips

    @property
    def holds_output(self) -> bool:
        """Whether this rank's `logprobs()` are those of its data-parallel share, and not empty."""
        return self.rank == self.layout.output_rank(self.layout.data_rank(self.rank))

    def train(
        self,
        micro_batches: Sequence[MicroBatch],
        old_logprobs: Sequence[Logprobs_R] | None = None,
        number: int | None = None,
    ) -> OptimizerStep:
        """Take one optimizer step on this data-parallel share, and return metrics over all shares.

        `old_logprobs` are the learner's own, from `logprobs()` before the first update on these samples; None means
        that this is the first, so the ratio is 1. `number` is that which `logprobs()` got for them. A step whose
        gradient is not finite is skipped and counted. Without
        micro-batches (then no share has any) there is nothing to learn and no step is taken.
        """
        if not micro_batches:
            return self._metrics([], taken=True, grad_norm=0.0)
        self._state.need(gradients=True, optimizer=True, changes=True)
        with self._runtime():
            reference = self._reference_logprobs(micro_batches)
            old: Sequence[Logprobs_R | None] = old_logprobs or [None] * len(micro_batches)
            routers = self._training_routers(micro_batches, number)
            batches = self._batches(micro_batches, routers, old, reference)
            self._optimizer.zero_gradients()
            sums = self._run(batches, self._loss, forward_only=False)
            self._state.need_optimizer()
            taken, grad_norm = self._optimizer.step()
            self.step += taken
            self._count(not taken)
            of_routers = routers.end(self._chunks if taken else ()) if routers else {}
            return self._metrics(sums, taken, grad_norm, of_routers)

    def logprobs(
        self, micro_batches: Sequence[MicroBatch], number: int | None = None, *, reference: bool = False
    ) -> list[Logprobs_R]:
        """Return the log-probabilities of each micro-batch's targets, on the ranks that hold the output; else nothing.

        With `reference`, by the weights that training started from. Raises ValueError if they were not kept. With a
        `number` of the step that trains on them, that uses the experts chosen here, if the configuration says so.
        """
        self._state.need()
        with self._runtime(), self._weights(reference):
            routers = self._routers.measuring(number) if self._routers and not reference else None
            batches = self._batches(micro_batches, routers)
            with torch.no_grad():
                results = self._run(batches, self._head.measure, forward_only=True)
        return self._held(results)

    def kl(self, micro_batches: Sequence[MicroBatch], estimator: Estimator, clamp: bool) -> list[Logprobs_R]:
        """Return the KL estimate against the reference of each micro-batch's targets [nats], where `logprobs` does."""
        current = self.logprobs(micro_batches)
        reference = self.logprobs(micro_batches, reference=True)
        pairs = zip(map(torch.from_numpy, current), map(torch.from_numpy, reference), strict=True)
        return [kl_estimate(now_R, then_R, estimator, clamp).numpy() for now_R, then_R in pairs]

    def values(self, micro_batches: Sequence[MicroBatch]) -> list[npt.NDArray[np.float32]]:
        """Return the critic's value before each micro-batch's targets, where `logprobs` returns something."""
        self._state.need()
        with self._runtime():
            results = self._own_critic().values(micro_batches)
        return self._held(results)

    def train_critic(self, micro_batches: Sequence[MicroBatch]) -> OptimizerStep:
        """Take one optimizer step of the critic on this data-parallel share, and return metrics over all shares.

        A step whose gradient is not finite is skipped and counted with the policy's.
        """
        self._state.need(gradients=True, optimizer=True, changes=True)
        self._state.need_optimizer()
        with self._runtime():
            step = self._own_critic().train(micro_batches, holds_output=self.holds_output)
        self._count(step.skipped)
        return step

    def _count(self, skipped: int) -> None:
        self.skipped += skipped
        self.skips = after(self.skips, [int(skipped)])

    def _own_critic(self) -> Critic:
        if self._critic is None:
            raise ValueError("there is no critic, because none is configured")
        return self._critic

    def divergence(self, micro_batches: Sequence[MicroBatch]) -> list[Logprobs_R]:
        """Return policy less teacher log-probability of each micro-batch's targets [nats], where `logprobs` does.

        Raises ValueError without a teacher.
        """
        if self._teacher is None:
            raise ValueError("there is no teacher, because none is configured")
        policy = self.logprobs(micro_batches)
        with self._runtime():
            results = self._teacher.logprobs(micro_batches)
        teacher = self._held(results)
        return [policy_R - teacher_R for policy_R, teacher_R in zip(policy, teacher, strict=True)]

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all weights as full tensors with their Hugging Face names, the same on every rank.

        Every rank must exhaust it. A tensor may be a view of the weights: copy what must outlive the next step.
        """
        self._state.need()
        with self._runtime():
            tensors = self._bridge.export(self._chunks)
        while True:
            with self._runtime(), torch.no_grad():
                item = next(tensors, None)
            if item is None:
                return
            yield item

    def zeros(self) -> tuple[str, ...]:
        """Return the names of tensors that hold nothing but zeros. Collective."""
        return tuple(name for name, tensor in self.export() if not tensor.any())

    def unequal_copies(self) -> tuple[UnequalCopy, ...]:
        """Return parameters whose copies on several ranks are not equal. Collective."""
        self._state.need()
        policy = unequal_copies(self._ddp)
        critic = unequal_copies(self._critic.chunks) if self._critic else ()
        return (*policy, *(replace(copy, parameter=f"critic: {copy.parameter}") for copy in critic))

    def write_hf(self, directory: Path) -> None:
        """Write the weights as a Hugging Face checkpoint, with the tokenizer of the original, and the layers of it that
        no learner trains. Rank 0 writes."""
        if self.rank == 0:
            original = self._config.checkpoint_dir
            export.write(directory, chain(self.export(), further_tensors(original, self._bridge.shape)), original)
        else:
            for _ in self.export():
                pass
        dist.barrier()

    def stage(self, directory: Path) -> None:
        """Copy the state to the host for a checkpoint in a directory, which is there and empty. Collective.

        `load()` continues from it: bit by bit in the same layout, and in any other. Training may go on at once;
        `write_staged` writes the copy, and must have returned before the next one is made.
        Kernels compiled so far are kept from then on: a process that resumes from the checkpoint needs them.
        """
        self._state.need(optimizer=True)
        self._state.need_optimizer()
        with self._runtime():
            counters = {"step": self.step, "skipped": self.skipped, "skips": list(self.skips)}
            self._draft = checkpoint.stage(
                directory, self._ddp, self._optimizer, self.layout, counters, self._staging, self._critic
            )
        if self.rank == 0:  # all ranks compile the same kernels
            self._kernels.pack_soon()

    def write_staged(self) -> Written:
        """Write what was copied, beside the training; return what the file of this rank has. Raises StorageError."""
        return self._staged().write(self._patience, self._moved)

    def finish_save(self, written: Sequence[Written]) -> None:
        """Write what names the files of all ranks: on rank 0, when all have written."""
        draft.finish(self._staged(), written)

    def _staged(self) -> Draft:
        if self._draft is None:
            raise ValueError("nothing was copied for a checkpoint")
        return self._draft

    def load(self, directory: Path) -> int:
        """Read this rank's part of a checkpoint; return its step. Raises CheckpointFormatError and StorageError.

        Not collective: a rank that reads longer keeps no other waiting. `spread` follows when all have read.
        """
        self._state.need(optimizer=True, changes=True)
        self._state.need_optimizer()
        with self._runtime():
            counters = checkpoint.load(
                directory,
                self._ddp,
                self._optimizer,
                self.layout,
                self._moved,
                self._critic,
                self._patience,
            )
        self.step, self.skipped = counters["step"], counters["skipped"]
        self.skips = tuple(counters.get("skips", ()))  # which older checkpoints do not have
        return self.step

    def bytes_done(self) -> int:
        """Return how many bytes of checkpoints were written or read so far. Not collective."""
        return self._moved.count

    def spread(self) -> None:
        """Give every rank the weights that others have loaded. Collective."""
        with self._runtime():
            checkpoint.spread(self._ddp)
            if self._critic is not None:
                checkpoint.spread(self._critic.chunks)

    def leave(self, weights: bool) -> None:
        """Give up the device memory of gradients, optimizer state and, if asked, weights, if the configuration allows.

        They come back by themselves when a call needs them.
        """
        self._state.leave(weights=weights)

    def close(self) -> None:
        """Leave the other ranks; this object cannot be used afterwards."""
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    def _batches(
        self, micro_batches: Sequence[MicroBatch], routers: RouterPass | None, *logprobs: Sequence[Logprobs_R | None]
    ) -> Batches:
        arguments = list(zip(micro_batches, *logprobs, strict=True))
        return Batches(self._rope, self.device, arguments, routers, self._config.layout.token_shares)

    def _training_routers(self, micro_batches: Sequence[MicroBatch], number: int | None) -> RouterPass | None:
        if self._routers is None:
            return None

        def forward(routers: RouterPass) -> None:
            self._run(self._batches(micro_batches, routers), _nothing, forward_only=True)

        return self._routers.training(micro_batches, number, forward)

    def _run(self, batches: Batches, outcome: schedule.Outcome, forward_only: bool) -> list[Any]:
        return schedule.run(self._ddp, batches, outcome, forward_only=forward_only)

    def _held(self, results: Sequence[torch.Tensor]) -> list[Logprobs_R]:
        return [result_R.cpu().numpy() for result_R in results] if self.holds_output else []

    def _loss(self, batch: Batch, hidden_R_H: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Sums]:
        """Return the loss, as Megatron wants it, with a token count that it must not divide by."""
        settings = self._config.loss
        logprobs_R, entropy_R = self._head(batch, hidden_R_H, settings.entropy)
        loss, sums = policy_loss(logprobs_R, entropy_R, batch.targets, settings, self._objective)
        layout = batch.part.layout
        lengths = {"train_tokens": len(layout.node_T), "computed_tokens": len(layout.tokens_N)}
        counts = {
            name: torch.full((), length, dtype=torch.float64, device=self.device)
            for name, length in {**lengths, "peak_seconds": self._speed.seconds_at_peak(layout)}.items()
        }
        return loss, torch.ones((), dtype=torch.int, device=self.device), {**sums, **counts}

    def _reference_logprobs(self, micro_batches: Sequence[MicroBatch]) -> Sequence[Logprobs_R | None]:
        """Return the reference's log-probabilities where the loss needs them; None on stages without a loss."""
        if self._config.loss.kl is None:
            return [None] * len(micro_batches)
        with self._weights(reference=True), torch.no_grad():
            results = self._run(self._batches(micro_batches, None), self._head.measure, forward_only=True)
        return [result.cpu().numpy() for result in results] or [None] * len(micro_batches)

    @contextmanager
    def _weights(self, reference: bool) -> Iterator[None]:
        if not reference:
            yield
        elif self._reference is None:
            raise ValueError("no reference weights were kept, because no KL penalty is configured")
        else:
            with self._reference.in_place_of(self._chunks):
                yield

    def _metrics(
        self, sums: Sequence[Sums], taken: bool, grad_norm: float, of_routers: Mapping[str, Any] | None = None
    ) -> OptimizerStep:
        """Add up what the ranks that hold the output know, and what the routers of all ranks do."""
        return OptimizerStep(
            **over_ranks(sums if self.holds_output else [], self.device),
            **(of_routers or {}),
            step=self.step,
            skipped=int(not taken),
            grad_norm=grad_norm,
            learning_rate=self._optimizer.learning_rate,
            peak_memory_bytes=self._peak_memory_bytes(),
        )

    def _peak_memory_bytes(self) -> int:
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated())
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def _nothing(batch: Batch, hidden_R_H: torch.Tensor, non_loss_data: bool) -> None:
    """The outcome of a pass that is made for what happens on its way."""
