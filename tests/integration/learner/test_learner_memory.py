"""Ranks whose state leaves the device, or begins on the host, train to the bit like ranks that keep it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api.sections import Kl, Optimizer
from rljob_trainer.learners.config import CriticSettings, LossSettings
from support.trainer.learner_data import learner_config, sequences, valued
from support.trainer.learner_ranks import run_ranks
from support.trainer.memory_scenarios import train_and_leave

CRITIC = CriticSettings(Optimizer(learning_rate=2e-3), total_steps=10, value_clip=0.08)
HOST = {"offload": True}
HOST_CRITIC = replace(CRITIC, optimizer=CRITIC.optimizer.model_copy(update=HOST))
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "alone": (1, {"loss": LossSettings(kl=Kl(coefficient=0.1))}),
    "data parallel, bf16": (2, {"precision": "bf16"}),
    "pipeline, critic": (2, {"pipeline": 2, "critic": CRITIC, "precision": "bf16"}),
}


@pytest.mark.parametrize(("ranks", "changes"), CASES.values(), ids=CASES)
def test_a_learner_that_leaves_after_every_call_trains_to_the_bit_like_one_that_stays(
    tiny_qwen3_dir: Path, tmp_path: Path, ranks: int, changes: dict[str, Any]
) -> None:
    stays = learner_config(tiny_qwen3_dir, **changes)
    steps = [valued(sequences(8, seed), seed) for seed in range(3)]
    leaves = replace(stays, leaves=True)
    host = replace(leaves, optimizer=stays.optimizer.model_copy(update=HOST), critic=stays.critic and HOST_CRITIC)
    wanted, *others = (
        run_ranks(train_and_leave, ranks, config, tmp_path / str(number), steps)
        for number, config in enumerate((stays, leaves, host))
    )
    for found in others:
        _compare(found, wanted)


def _compare(found: list[Any], wanted: list[Any]) -> None:
    memory = {"peak_memory_bytes": None}
    for one, other in zip(wanted, found, strict=True):
        for name in ("steps", "again", "next"):
            assert _metrics(other[name], memory) == _metrics(one[name], memory)
        left = {name: value for name, value in other.items() if name not in ("steps", "again", "next", "critic")}
        torch.testing.assert_close(left, {name: one[name] for name in left}, rtol=0, atol=0)


def _metrics(steps: Any, without: dict[str, Any]) -> list[Any]:
    return [replace(step, **without) for step in (steps if isinstance(steps, list) else [steps])]
