"""Tensor ranks that share out tokens between their matrices train like one rank that has them all.

All cases of as many ranks share their processes, which take longer to start than to train.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from integration.learner.test_learner_context import LOSS, MOST, RATES, mixed
from integration.learner.test_learner_experts import ROUTER
from rljob_api.sections import Experts, Optimizer, Recompute
from rljob_trainer.assembly.settings import RECOMPUTE
from rljob_trainer.batches.packing import Packing, pack
from rljob_trainer.learners.config import CriticSettings, LearnerConfig
from rljob_trainer.learners.rank.attention.layout import token_layout
from support.trainer.family_scenarios import called, kept_bytes, one_after_the_other
from support.trainer.learner_data import learner_config, sequences, valued
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import distil, load_and_look, save_and_look, train_and_export, train_critic
from support.trainer.naive_critic import NaiveCritic
from support.trainer.naive_learner import NaiveLearner, NaiveStep
from support.trainer.tiny_models import HIDDEN_SIZE, NUM_LAYERS

Model = tuple[str, bool]
"""a family, and whether its embeddings are tied"""
Case = tuple[Model, Mapping[str, Any]]

STEPS = [sequences(11, 0), mixed(1)]
"""odd numbers of tokens, fewer tokens than ranks, and common beginnings"""
BUDGET = 61
"""tokens of a micro-batch"""
LLAMA, QWEN2, QWEN3, UNTIED = ("llama", True), ("qwen2", False), ("qwen3", True), ("qwen3", False)
GEMMA = ("gemma3_text", True)
EXPERTS, MIXTRAL, GLM4, BIASED = ((family, False) for family in ("qwen3_moe", "mixtral", "glm4", "glm4_moe"))
LATENT = ("deepseek_v3", False)
AGAIN = {"megatron_args": RECOMPUTE[Recompute.FULL]}
CASES: dict[int, list[Case]] = {
    2: [
        *((model, {}) for model in (LLAMA, QWEN2, UNTIED, EXPERTS, GLM4, GEMMA)),
        *((EXPERTS, {"expert": 2}), (MIXTRAL, {"expert_tensor": 2}), (QWEN3, AGAIN)),
        *((BIASED, {"expert": 2}), (BIASED, AGAIN)),
        *((LATENT, {}), (LATENT, {"expert": 2, **AGAIN})),
    ],
    4: [
        *((model, {"pipeline": 2}) for model in (LLAMA, EXPERTS, BIASED, LATENT)),
        *((UNTIED, {}), (EXPERTS, {"expert": 2, "expert_tensor": 2})),
        *((model, {"context": 2}) for model in (QWEN3, EXPERTS, LATENT)),
        (EXPERTS, {"context": 2, "expert": 2, **AGAIN}),
    ],
}
"""by the number of ranks; tensorParallel is 2, and what is left are data-parallel ranks"""
CRITIC = CriticSettings(Optimizer(learning_rate=2e-3, epsilon=1e-4), total_steps=10, value_clip=0.08)
VALUED = valued(sequences(9, 3), 3)
SAMPLES = [replace(sequence, index=index) for index, sequence in enumerate(STEPS[1])]


def shared(directory: Path, **changes: Any) -> LearnerConfig:
    return learner_config(directory, **{"loss": LOSS, "tensor": 2, "sequence": True, **changes})


def router(model: Model) -> Experts:
    return ROUTER if model in (EXPERTS, MIXTRAL, BIASED, LATENT) else Experts()


@cache
def naive_run(directory: Path, of_routers: Experts) -> tuple[list[NaiveStep], dict[str, torch.Tensor]]:
    """Return the steps of a loop over Hugging Face's model, and the weights after the last one."""
    learner = NaiveLearner(directory, LOSS, learner_config(directory).optimizer, RATES, of_routers)
    return [learner.step(step, True) for step in STEPS], learner.weights()


@pytest.mark.parametrize("world", CASES)
def test_ranks_that_share_out_tokens_train_like_a_naive_hugging_face_loop(
    checkpoints: dict[Model, Path], world: int
) -> None:
    configs = [shared(checkpoints[model], experts=router(model), **sizes) for model, sizes in CASES[world]]
    given = [(config, STEPS, BUDGET, True) for config in configs]
    by_rank = run_ranks(one_after_the_other, world, train_and_export, given, timeout_s=240.0)
    for (model, sizes), results in zip(CASES[world], zip(*by_rank, strict=True), strict=True):
        naive, wanted = naive_run(checkpoints[model], router(model))
        for steps, weights in results:
            case = f"{model}, {sizes}"
            assert steps[0].kl == 0.0, case
            assert [step.loss for step in steps] == pytest.approx([s.loss for s in naive], rel=1e-5, abs=1e-6), case
            assert [step.grad_norm for step in steps] == pytest.approx([s.grad_norm for s in naive], rel=1e-5), case
            assert_measured(steps, naive, case)
            theirs = {name: wanted[name] for name in weights}
            torch.testing.assert_close(weights, theirs, rtol=0, atol=MOST, msg=f"{case}: weights differ")


def assert_measured(steps: list[Any], naive: list[NaiveStep], case: str) -> None:
    """Check what the routers measured, and that tokens which only fill up shares count for nothing."""
    tokens = [sum(len(sequence.tokens) for sequence in step) for step in STEPS]
    for step, reference, number in zip(steps, naive, tokens, strict=True):
        measured = {name: getattr(step, name) for name in reference.routers if getattr(step, name) is not None}
        assert measured == pytest.approx({name: reference.routers[name] for name in measured}, rel=1e-5), case
        assert (step.train_tokens, step.dropped_tokens or 0) == (number, 0), case


@pytest.fixture(scope="module")
def others(checkpoints: dict[Model, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return what two ranks have to say of the scenarios of the tests below, in their order."""
    qwen3, taught = checkpoints[QWEN3], {"teacher_dir": checkpoints[UNTIED]}
    folder, (before, after) = tmp_path_factory.mktemp("states"), STEPS
    cases: list[tuple[Any, ...]] = [(train_critic, shared(qwen3, critic=CRITIC), [VALUED], BUDGET)]
    cases += [(distil, shared(qwen3, sequence=shares, **taught), SAMPLES) for shares in (True, False)]
    for saved in (True, False):
        state = folder / str(saved)
        cases.append((save_and_look, shared(qwen3, sequence=saved), state, [before], after))
        cases.append((load_and_look, shared(qwen3, sequence=not saved), state, after))
    cases += [(kept_bytes, shared(qwen3, sequence=shares), before) for shares in (True, False)]
    return run_ranks(one_after_the_other, 2, called, cases, timeout_s=240.0)


def test_a_critic_of_ranks_that_share_out_tokens_is_that_of_one_rank(
    checkpoints: dict[Model, Path], others: list[Any]
) -> None:
    naive = NaiveCritic(checkpoints[QWEN3], CRITIC, [CRITIC.optimizer.learning_rate])
    wanted = naive.step(VALUED)
    for (step,), _ in (rank[0] for rank in others):
        assert step.value_loss == pytest.approx(wanted.loss, rel=1e-5)
        assert step.critic_grad_norm == pytest.approx(wanted.grad_norm, rel=1e-5)
    _, (_, values) = others[0][0]
    ours = torch.cat([torch.from_numpy(values[index]) for index in range(len(VALUED))])
    theirs = torch.cat([naive.values(sequence).detach() for sequence in VALUED])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_teacher_of_ranks_that_share_out_tokens_says_what_it_says_otherwise(others: list[Any]) -> None:
    (found, step), (wanted, wanted_step) = others[0][1:3]
    for index in range(len(SAMPLES)):
        np.testing.assert_allclose(found[index], wanted[index], rtol=0, atol=2e-5)
    assert step.grad_norm == pytest.approx(wanted_step.grad_norm, rel=1e-5)


@pytest.mark.parametrize("saved_with_shares", [True, False])
def test_a_run_goes_on_with_or_without_shared_out_tokens(others: list[Any], saved_with_shares: bool) -> None:
    saved, loaded = others[0][3:5] if saved_with_shares else others[0][5:7]
    for name in ("weights", "master", "exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(loaded[name], saved[name], rtol=0, atol=0)
    assert loaded["counts"] == saved["counts"] == (1, [1.0])
    assert loaded["next"].grad_norm == pytest.approx(saved["next"].grad_norm, rel=1e-5)
    torch.testing.assert_close(loaded["after"], saved["after"], rtol=0, atol=MOST)


def test_what_is_kept_of_norms_and_inputs_of_layers_is_shared_out(others: list[Any]) -> None:
    ((batch,),) = pack(STEPS[0], Packing(1, 10_000))
    in_fp32 = 4 * len(token_layout(batch).tokens_N)
    for with_shares, without in (rank[7:9] for rank in others):
        assert without - with_shares > 0.45 * in_fp32 * NUM_LAYERS * 4 * HIDDEN_SIZE
