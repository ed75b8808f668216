"""Every argument that passes through to Megatron is read while a step is computed, and the step stays the same."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rljob_api.rules.arguments import MEGATRON_FREE
from rljob_api.rules.megatron import WITHIN
from rljob_api.sections import Recompute
from rljob_trainer.assembly.settings import RECOMPUTE
from support.trainer.argument_readers import train_with_readers
from support.trainer.learner_data import learner_config, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import train
from support.trainer.tiny_models import FAMILIES

STEPS = [sequences(8, seed) for seed in range(2)]
FULL = RECOMPUTE[Recompute.FULL]
PARTS = {"recompute_granularity": "selective", "recompute_modules": list(WITHIN)}
CHECKED = {"disable_bf16_reduced_precision_matmul"}
"""what Megatron sets in torch when it checks its configuration, and reads no more"""
CASES: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
    ("qwen3", FULL, {}),
    ("qwen3", FULL | {"recompute_method": "block", "recompute_num_layers": 1}, {}),
    ("deepseek_v3", PARTS, {}),
    ("qwen3", {"deallocate_pipeline_outputs": True}, {"pipeline": 2}),
    ("qwen3", FULL | {"distribute_saved_activations": True}, {"tensor": 2}),
    ("qwen3", {"disable_bf16_reduced_precision_matmul": True}, {"precision": "bf16"}),
]


@pytest.mark.parametrize(("family", "passed", "layout"), CASES, ids=[str(list(case[1])[-1]) for case in CASES])
def test_an_argument_of_megatron_is_read_and_changes_no_number(
    tmp_path: Path, family: str, passed: Mapping[str, Any], layout: Mapping[str, Any]
) -> None:
    config = learner_config(FAMILIES[family](tmp_path, tied=False), **layout)
    ranks = 2 if layout.keys() & {"pipeline", "tensor"} else 1
    plain = run_ranks(train, ranks, config, STEPS, 64, True)[-1]
    passing = learner_config(config.checkpoint_dir, **layout, megatron_args=passed)
    steps, readers = run_ranks(train_with_readers, ranks, passing, STEPS, 64, tuple(passed))[-1]

    assert {name for name, functions in readers.items() if not functions - {"__post_init__"}} <= CHECKED
    assert [step.grad_norm for step in steps] == pytest.approx([step.grad_norm for step in plain], rel=1e-5)
    assert [step.loss for step in steps] == pytest.approx([step.loss for step in plain], rel=1e-5, abs=1e-6)


def test_every_argument_that_may_pass_is_tested() -> None:
    assert {name for _, passed, _ in CASES for name in passed} == set(MEGATRON_FREE)
