"""Parameters that tensor ranks hold whole stay equal, bit by bit, whatever order their kernels add in."""

from pathlib import Path
from typing import Any

import torch

from support.trainer.family_scenarios import one_after_the_other
from support.trainer.learner_data import learner_config, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.replica_scenarios import noticed, train_with_noise

Model = tuple[str, bool]
STEPS = [sequences(8, seed) for seed in range(3)]
NOISE = 1e-3
CASES: list[tuple[Model, dict[str, Any]]] = [
    (("qwen3", True), {"precision": "bf16"}),
    (("llama", True), {"sequence": True}),
    (("llama", True), {"pipeline": 2}),
    (("qwen3_moe", False), {"expert": 2}),
    (("deepseek_v3", False), {"context": 2}),
    (("gemma3_text", True), {}),
    (("deepseek_v3", False), {"tensor": 4}),
]
"""models and layouts of four ranks; tensorParallel is 2 where none is given"""


def test_copies_of_a_parameter_are_equal_on_all_tensor_ranks(checkpoints: dict[Model, Path]) -> None:
    given = [(learner_config(checkpoints[model], **{"tensor": 2, **layout}), STEPS, NOISE) for model, layout in CASES]
    by_rank = run_ranks(one_after_the_other, 4, train_with_noise, given, timeout_s=240.0)
    for case, ranks in zip(CASES, zip(*by_rank, strict=True), strict=True):
        for number, whole in enumerate(ranks):
            first = next(each for each in ranks if each.coordinate == whole.coordinate)
            assert whole.parameters, case
            unequal = [name for name, each in whole.parameters.items() if not torch.equal(each, first.parameters[name])]
            assert unequal == [], f"{case}: rank {number}"


def test_a_copy_that_differs_is_noticed_by_name_on_every_tensor_rank(checkpoints: dict[Model, Path]) -> None:
    config = learner_config(checkpoints[("qwen3", True)], tensor=2)
    before, after = zip(*run_ranks(noticed, 2, config, "final_layernorm"), strict=True)
    assert before == ([], [])
    assert [[name.rpartition("decoder.")[2] for name in each] for each in after] == [["final_layernorm.weight"]] * 2
