"""Ranks whose state leaves the device between all calls do what ranks do that keep it, to the bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_trainer.learners.config import CriticSettings, KlSettings, LossSettings, OptimizerSettings
from support.trainer.learner_data import learner_config, sequences, valued
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import train_and_leave

CRITIC = CriticSettings(OptimizerSettings(learning_rate=2e-3, total_steps=10), value_clip=0.08)
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "alone": (1, {"loss": LossSettings(kl=KlSettings(0.1))}),
    "data parallel, bf16": (2, {"precision": "bf16"}),
    "pipeline, critic": (2, {"pipeline_parallel": 2, "critic": CRITIC, "precision": "bf16"}),
}


@pytest.mark.parametrize(("ranks", "changes"), CASES.values(), ids=CASES)
def test_a_learner_that_leaves_after_every_call_trains_to_the_bit_like_one_that_stays(
    tiny_qwen3_dir: Path, tmp_path: Path, ranks: int, changes: dict[str, Any]
) -> None:
    stays = learner_config(tiny_qwen3_dir, **changes)
    steps = [valued(sequences(8, seed), seed) for seed in range(3)]
    wanted, found = (
        run_ranks(train_and_leave, ranks, replace(stays, leaves=leaves), tmp_path / str(leaves), steps)
        for leaves in (False, True)
    )
    memory = {"peak_memory_bytes": None}
    for one, other in zip(wanted, found, strict=True):
        for name in ("steps", "again", "next"):
            assert _metrics(other[name], memory) == _metrics(one[name], memory)
        left = {name: value for name, value in other.items() if name not in ("steps", "again", "next", "critic")}
        torch.testing.assert_close(left, {name: one[name] for name in left}, rtol=0, atol=0)


def _metrics(steps: Any, without: dict[str, Any]) -> list[Any]:
    return [replace(step, **without) for step in (steps if isinstance(steps, list) else [steps])]
