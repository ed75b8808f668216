"""Ranks with several chunks of layers (virtual pipeline stages) train and resume like ranks with one."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api.sections import Experts, Kl, Optimizer, Replay
from rljob_trainer.learners.config import CriticSettings, LearnerConfig, LossSettings
from rljob_trainer.metrics import OptimizerStep
from support.trainer.family_scenarios import called, one_after_the_other
from support.trainer.learner_data import changed, learner_config, sequences, valued
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import (
    distil,
    load_and_look,
    logprobs,
    save_and_look,
    train_and_export,
    train_as_chosen_before,
    train_critic,
)
from support.trainer.tiny_models import tiny, tiny_qwen3

LOSS = LossSettings(entropy_coefficient=0.01, kl=Kl(coefficient=0.1), temperature=0.8)
ROUTER = Experts(balance_loss=3.0, z_loss=0.2)
STEPS = [sequences(11, seed) for seed in range(2)]
"""an odd number, so that data-parallel ranks have different numbers of micro-batches"""
SAMPLES = [replace(sequence, index=index) for index, sequence in enumerate(STEPS[0])]
MOST = 2e-6
"""difference of a weight after two steps"""
BUDGET = 64
"""tokens of a micro-batch"""
LAYERS = 8
VIRTUAL = {"pipeline": 2, "virtual": 2}
ON_TWO: list[dict[str, Any]] = [
    {},
    {"virtual": 4},
    {"layers": (3, 1, 2, 2)},
    {"megatron_args": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}},
    {"leaves": True},
]
ON_FOUR: list[dict[str, Any]] = [
    {},
    {"tensor": 2},
    {"tensor": 2, "sequence": True},
    {"context": 2},
    {"pipeline": 4},
]
Trained = tuple[list[OptimizerStep], dict[str, torch.Tensor]]


def virtual(config: LearnerConfig, **changes: Any) -> LearnerConfig:
    return changed(config, **VIRTUAL | changes)


def run(world: int, cases: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Run each case (a scenario and its arguments) in the same ranks; return each rank's results."""
    return run_ranks(one_after_the_other, world, called, cases, timeout_s=300.0)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("LlamaForCausalLM", tmp_path_factory.mktemp("dense"), tied=True, layers=LAYERS)


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with experts in all layers but the first three, with a bias in its routers."""
    changes = {"layers": LAYERS, "tied": False, "first_k_dense_replace": 3}
    return tiny("Glm4MoeForCausalLM", tmp_path_factory.mktemp("routed"), **changes)


@cache
def alone(directory: Path) -> Trained:
    """Return what one rank makes of the steps."""
    ((found,),) = run(1, [(train_and_export, config_of(directory), STEPS, BUDGET, True)])
    return found


def config_of(directory: Path) -> LearnerConfig:
    return learner_config(directory, loss=LOSS, experts=ROUTER)


def assert_alike(found: Trained, wanted: Trained) -> None:
    steps, weights = found
    for name in ("loss", "grad_norm", "kl", "entropy", "balance_loss", "router_z_loss", "expert_load"):
        values, others = ([getattr(step, name) for step in each] for each in (steps, wanted[0]))
        assert values == (others if None in others else pytest.approx(others, rel=1e-5, abs=1e-6)), name
    torch.testing.assert_close(weights, wanted[1], rtol=0, atol=MOST)


@pytest.mark.parametrize(("world", "cases"), [(2, ON_TWO), (4, ON_FOUR)], ids=["2 ranks", "4 ranks"])
def test_chunks_train_like_one_rank(dense: Path, world: int, cases: list[dict[str, Any]]) -> None:
    configs = [virtual(config_of(dense), **changes) for changes in cases]
    for found in run(world, [(train_and_export, config, STEPS, BUDGET, True) for config in configs]):
        for trained in found:
            assert_alike(trained, alone(dense))


def test_chunks_with_experts_train_like_one_rank(routed: Path) -> None:
    cases: list[dict[str, Any]] = [
        {"expert": 2},
        {"tensor": 2, "sequence": True, "expert_tensor": 2},
    ]
    configs = [virtual(config_of(routed), **changes) for changes in cases]
    for found in run(4, [(train_and_export, config, STEPS, BUDGET, True) for config in configs]):
        for trained in found:
            assert_alike(trained, alone(routed))


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("Gemma3ForCausalLM", {"sliding_window_pattern": 3, "tied": True}),
        ("DeepseekV3ForCausalLM", {"first_k_dense_replace": 3, "tied": False}),
    ],
    ids=["windows", "latents"],
)
def test_chunks_with_layers_that_differ_train_like_one_rank(
    tmp_path: Path, architecture: str, sizes: dict[str, Any]
) -> None:
    model = tiny(architecture, tmp_path / "model", layers=LAYERS, **sizes)
    config = config_of(model)
    ((wanted,),) = run(1, [(train_and_export, config, STEPS, BUDGET, True)])
    for (trained,) in run(2, [(train_and_export, virtual(config), STEPS, BUDGET, True)]):
        assert_alike(trained, wanted)


def test_experts_that_were_chosen_before_are_used_again_in_all_chunks(routed: Path) -> None:
    config = replace(config_of(routed), experts=Experts(replay=Replay.LEARNER, balance_loss=3.0))
    arguments = (STEPS, BUDGET)
    ((wanted,),) = run(1, [(train_as_chosen_before, config, *arguments)])
    for (found,) in run(2, [(train_as_chosen_before, virtual(config), *arguments)]):
        for name in ("loss", "grad_norm", "balance_loss", "expert_load"):
            values, others = ([getattr(step, name) for step in each] for each in (found, wanted))
            assert values == pytest.approx(others, rel=1e-5, abs=1e-6), name


def test_critic_teacher_and_log_probabilities_are_those_of_one_rank(dense: Path, tmp_path: Path) -> None:
    teacher = tiny_qwen3(tmp_path / "teacher", seed=7, layers=4, tied=False)
    optimizer = Optimizer(learning_rate=2e-3, epsilon=1e-4, clip_grad=0.5)
    critic = replace(config_of(dense), critic=CriticSettings(optimizer, total_steps=10, value_clip=0.08))
    taught = replace(config_of(dense), loss=LossSettings(temperature=0.8), teacher_dir=teacher)
    steps = [valued(step, seed) for seed, step in enumerate(STEPS)]

    def cases(change: Any) -> list[tuple[Any, ...]]:
        return [
            (train_critic, change(critic), steps, BUDGET),
            (distil, change(taught), SAMPLES),
            (logprobs, change(config_of(dense)), SAMPLES, 10_000),
        ]

    ((values, taught_by, measured),) = run(1, cases(lambda config: config))
    ranks = run(2, cases(virtual))
    for (losses, _), (divergence, step), _ in ranks:
        assert [each.value_loss for each in losses] == pytest.approx([each.value_loss for each in values[0]], rel=1e-5)
        norms = [each.critic_grad_norm for each in values[0]]
        assert [each.critic_grad_norm for each in losses] == pytest.approx(norms, rel=1e-5)
        for index, of_sample in taught_by[0].items():
            assert divergence[index] == pytest.approx(of_sample, abs=2e-5)
        assert step.loss == pytest.approx(taught_by[1].loss, rel=1e-5)
    for index, value in values[1][-1].items():
        assert ranks[-1][0][1][-1][index] == pytest.approx(value, rel=1e-4, abs=1e-5)
    assert ranks[0][2] == []  # the other stage has the output
    numbers = torch.cat([torch.from_numpy(each).flatten() for each in measured])
    others = torch.cat([torch.from_numpy(each).flatten() for each in ranks[-1][2]])
    torch.testing.assert_close(others.sort().values.unique(), numbers.sort().values.unique(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("which", ["dense", pytest.param("routed", marks=pytest.mark.long)])
def test_chunks_load_what_other_layouts_have_saved_and_others_what_they_save(
    which: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config = config_of(request.getfixturevalue(which))
    further: dict[str, Any] = {"expert": 2} if which == "routed" else {"tensor": 2}
    plain, own = changed(config, pipeline=2), virtual(config)
    by_chunks, by_stages, by_one = (tmp_path / name for name in ("chunks", "stages", "one"))
    before, after = STEPS[:1], STEPS[1]
    ((saved, saved_by_stages, by_stages_of_chunks), *_) = run(
        2,
        [
            (save_and_look, own, by_chunks, before, after),
            (save_and_look, plain, by_stages, before, after),
            (load_and_look, plain, by_chunks, after),
        ],
    )
    ((by_one_of_chunks, saved_by_one),) = run(
        1, [(load_and_look, config, by_chunks, after), (save_and_look, config, by_one, before, after)]
    )
    cases = [(own, by_chunks), (virtual(config, virtual=4), by_chunks), (own, by_stages), (own, by_one)]
    ((*loaded, of_stages, of_one), *_) = run(2, [(load_and_look, each, directory, after) for each, directory in cases])
    wide = [virtual(config, **further), changed(plain, **further)]
    ((*loaded_wide,), *_) = run(4, [(load_and_look, each, by_chunks, after) for each in wide])
    for state, wanted in [
        *((state, saved) for state in (by_stages_of_chunks, by_one_of_chunks, *loaded, *loaded_wide)),
        (of_stages, saved_by_stages),
        (of_one, saved_by_one),
    ]:
        for name in ("weights", "master", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(state[name], wanted[name], rtol=0, atol=0)
        assert state["counts"] == wanted["counts"]
        assert state["next"].loss == pytest.approx(wanted["next"].loss, rel=1e-6, abs=1e-7)
        torch.testing.assert_close(state["after"], wanted["after"], rtol=1e-5, atol=1e-6)


def test_weights_in_bf16_come_back_in_all_chunks(dense: Path, tmp_path: Path) -> None:
    """In fp32 they are their own masters, and come back with the optimizer's state."""
    config, directory = replace(config_of(dense), precision="bf16"), tmp_path / "step"
    ((saved,),) = run(1, [(save_and_look, config, directory, STEPS[:1], STEPS[1])])
    ((loaded,), *_) = run(2, [(load_and_look, virtual(config), directory, STEPS[1])])
    for name in ("weights", "master", "exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(loaded[name], saved[name], rtol=0, atol=0)
