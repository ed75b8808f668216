"""What several ranks hold stays equal, bit by bit, in whichever order their kernels add; an unequal copy is noticed."""

from pathlib import Path
from typing import Any

import torch

from rljob_trainer.learners.copies import UnequalCopy
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
            assert whole.unequal == (), f"{case}: rank {number}"


EXPERT = "decoder.layers.0.mlp.experts.local_experts.0"
CHANGES: list[tuple[Model, dict[str, Any], int, str, str, tuple[int, ...]]] = [
    (("qwen3", True), {"tensor": 2}, 1, "final_layernorm", "decoder.final_layernorm.weight", (0, 1)),
    (("llama", True), {}, 3, "0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc1.weight", (0, 1, 2, 3)),
    (("llama", True), {"context": 2}, 1, "word_embeddings", "embedding.word_embeddings.weight", (0, 1, 2, 3)),
    (("llama", True), {"pipeline": 2}, 3, "layers.0.mlp.linear_fc2", "decoder.layers.1.mlp.linear_fc2.weight", (2, 3)),
    (("llama", True), {"pipeline": 2}, 3, "output_layer", "embedding.word_embeddings.weight", (1, 3)),
    (("deepseek_v3", False), {"tensor": 2}, 2, "expert_bias", "decoder.layers.1.mlp.router.expert_bias", (0, 2)),
    (("qwen3_moe", False), {"expert": 2}, 3, "experts.0.linear_fc1", f"{EXPERT}.linear_fc1.weight", (1, 3)),
]
"""model, layout of four ranks, the rank that changes something and what, the name and the ranks that are to be found"""


def test_a_copy_that_differs_is_noticed_with_its_name_and_ranks(checkpoints: dict[Model, Path]) -> None:
    given = [
        (learner_config(checkpoints[model], **layout), changed_on, part_of_name)
        for model, layout, changed_on, part_of_name, _, _ in CHANGES
    ]
    by_rank = run_ranks(one_after_the_other, 4, noticed, given, timeout_s=240.0)
    for change, ranks in zip(CHANGES, zip(*by_rank, strict=True), strict=True):
        before, after = zip(*ranks, strict=True)
        assert before == ((),) * 4, change
        assert len(set(after)) == 1, f"{change}: all ranks say the same"
        *_, changed_on, _, name, held_by = change
        others = (changed_on,) if changed_on != held_by[0] else held_by[1:]
        assert UnequalCopy(name, held_by, others) in after[0], f"{change}: {after[0]}"
