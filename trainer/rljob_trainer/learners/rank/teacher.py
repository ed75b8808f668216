"""A frozen model beside the policy, which judges its samples: distillation's teacher, in the policy's parallel layout.

Its weights are in host memory, and on the device only while it scores. What it computes with is the policy's own code.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from rljob_trainer.batches.packing import MicroBatch
from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank import schedule
from rljob_trainer.learners.rank.attention.rope import Rope
from rljob_trainer.learners.rank.device_batches import Batches
from rljob_trainer.learners.rank.model.model import PolicyModel, build_chunks
from rljob_trainer.learners.rank.policy_head import PolicyHead
from rljob_trainer.learners.rank.weights.bridges import bridge


class Teacher:
    """This rank's part of the teacher. Only its scores leave it: no gradients, no checkpoints."""

    def __init__(self, config: LearnerConfig, checkpoint_dir: Path, device: torch.device) -> None:
        """Load the checkpoint; Megatron's groups are there already. Raises UnsupportedModelError."""
        its_bridge = bridge(replace(config, checkpoint_dir=checkpoint_dir))
        self._chunks = build_chunks(its_bridge, PolicyModel, config.device)
        its_bridge.load_weights(list(self._chunks), str(checkpoint_dir))
        for chunk in self._chunks:
            chunk.requires_grad_(False)
        self._head = PolicyHead(self._chunks[-1], its_bridge.vocab_size, config.loss.temperature)
        self._rope = Rope(its_bridge.hf_config, its_bridge.config.kv_channels, device)
        self._device = device
        self._shares = config.layout.token_shares

    def logprobs(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """Return the log-probabilities of each micro-batch's targets, on the last stage; else nothing."""
        arguments = [(batch,) for batch in micro_batches]
        batches = Batches(self._rope, self._device, arguments, shares=self._shares)
        with self._on_device(), torch.no_grad():
            return schedule.run(self._chunks, batches, self._head.measure, forward_only=True)

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Have the weights where the samples are, inside the block."""
        self._move(self._device)
        try:
            yield
        finally:
            self._move(torch.device("cpu"))

    def _move(self, device: torch.device) -> None:
        for chunk in self._chunks:
            chunk.to(device)
