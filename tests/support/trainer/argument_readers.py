"""A rank of the learner's tests that notes which functions read arguments of Megatron."""

import sys
from typing import Any
from unittest.mock import patch

from megatron.core.transformer.transformer_config import TransformerConfig

from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.metrics import OptimizerStep
from support.trainer.learner_scenarios import Steps, train


def train_with_readers(
    rank: int, world_size: int, port: int, config: LearnerConfig, steps: Steps, max_tokens: int, names: tuple[str, ...]
) -> tuple[list[OptimizerStep], dict[str, set[str]]]:
    """Take the steps; return their metrics, and which functions have read these fields of Megatron's configuration."""
    readers: dict[str, set[str]] = {name: set() for name in names}
    plain = TransformerConfig.__getattribute__

    def read(given: TransformerConfig, name: str) -> Any:
        if name in readers:
            readers[name].add(sys._getframe(1).f_code.co_name)
        return plain(given, name)

    with patch.object(TransformerConfig, "__getattribute__", read):
        return train(rank, world_size, port, config, steps, max_tokens, True), readers
