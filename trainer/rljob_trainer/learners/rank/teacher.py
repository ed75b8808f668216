"""A frozen model beside the policy, which judges its samples: distillation's teacher, in the policy's parallel layout.

Its weights are in host memory, and on the device only while it scores. What it computes with is the policy's own code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank.attention.rope import Rope
from rljob_trainer.learners.rank.model.model import PolicyModel, build_chunks
from rljob_trainer.learners.rank.weights.bridges import bridge


class Teacher:
    """This rank's part of the teacher. Only its scores leave it: no gradients, no checkpoints."""

    def __init__(self, config: LearnerConfig, checkpoint_dir: Path, device: torch.device) -> None:
        """Load the checkpoint; Megatron's groups are there already. Raises UnsupportedModelError."""
        its_bridge = bridge(replace(config, checkpoint_dir=checkpoint_dir))
        self.chunks = build_chunks(its_bridge, PolicyModel, config.device)
        its_bridge.load_weights(list(self.chunks), str(checkpoint_dir))
        for chunk in self.chunks:
            chunk.requires_grad_(False)
        self.vocab_size: int = its_bridge.vocab_size
        self.rope = Rope(its_bridge.hf_config, its_bridge.config.kv_channels, device)
        self._device = device

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Have the weights where the samples are, inside the block."""
        self._move(self._device)
        try:
            yield
        finally:
            self._move(torch.device("cpu"))

    def _move(self, device: torch.device) -> None:
        for chunk in self.chunks:
            chunk.to(device)
