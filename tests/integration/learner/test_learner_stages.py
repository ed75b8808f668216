"""Pipeline stages with different numbers of layers train like those with equally many, and load each other's states."""

from pathlib import Path

import pytest
import torch

from support.trainer.learner_data import changed, learner_config, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import load_and_look, save_and_look, train_and_export
from support.trainer.tiny_models import tiny

STEPS = [sequences(12, seed) for seed in range(2)]
MOST = 2e-6
"""difference of a weight after two steps"""


@pytest.mark.parametrize(
    ("architecture", "layers", "changes"),
    [
        ("LlamaForCausalLM", (3, 1), {}),
        ("Glm4MoeForCausalLM", (1, 3), {"first_k_dense_replace": 2}),  # in both stages, or all in one
        ("DeepseekV3ForCausalLM", (1, 3), {"first_k_dense_replace": 2}),
        ("Gemma3ForCausalLM", (3, 1), {"sliding_window_pattern": 3}),  # a window in the last layer, not in the third
    ],
    ids=str,
)
def test_uneven_stages_train_and_resume_like_even_ones(
    tmp_path: Path, architecture: str, layers: tuple[int, int], changes: dict[str, int]
) -> None:
    tied = architecture == "LlamaForCausalLM"
    alone = learner_config(tiny(architecture, tmp_path / "hf", tied=tied, layers=4, **changes))
    even = changed(alone, pipeline=2)
    uneven = changed(even, layers=layers)

    (steps, weights), *_ = run_ranks(train_and_export, 2, uneven, STEPS, 64, True)
    (wanted_steps, wanted), *_ = run_ranks(train_and_export, 2, even, STEPS, 64, True)
    assert [step.loss for step in steps] == pytest.approx([step.loss for step in wanted_steps], rel=1e-5, abs=1e-6)
    assert [step.grad_norm for step in steps] == pytest.approx([step.grad_norm for step in wanted_steps], rel=1e-5)
    torch.testing.assert_close(weights, wanted, rtol=0, atol=MOST)

    saved = run_ranks(save_and_look, 2, uneven, tmp_path / "step", STEPS[:1], STEPS[1])[0]
    for world, config in ((1, alone), (2, even), (2, changed(even, layers=layers[::-1]))):
        loaded = run_ranks(load_and_look, world, config, tmp_path / "step", STEPS[1])[0]
        for name in ("weights", "master", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(loaded[name], saved[name], rtol=0, atol=0)
        assert loaded["next"].loss == pytest.approx(saved["next"].loss, rel=1e-6)
