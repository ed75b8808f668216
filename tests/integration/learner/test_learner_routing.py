"""Losses and metrics of routers beyond one pass over sequences, and replayed choices of experts."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from integration.learner.test_learner_experts import (
    BUDGET,
    LOSS,
    RATES,
    ROUTER,
    STEPS,
    Sizes,
    assert_alike,
    in_layout,
    naive_run,
    named,
)
from rljob_api.sections import BalanceOver, Experts, Replay
from support.trainer.learner_data import changed, learner_config
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import logprobs, train_and_export, train_as_chosen_before
from support.trainer.naive_learner import NaiveLearner
from support.trainer.tiny_models import NUM_LAYERS, tiny

FAST = 30.0
"""times the usual learning rate, so that an update changes which experts are best"""
EXPERTS = 4
"""of each layer of the tiny model"""
OVER_STEP = Experts(balance_loss=3.0, balance_over=BalanceOver.STEP)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("Qwen3MoeForCausalLM", tmp_path_factory.mktemp("experts"), tied=False)


@pytest.mark.parametrize("sizes", [(2, 1, 2, 2, 2), (1, 2, 2, 2, 1)], ids=named)
def test_the_balance_over_a_step_is_that_of_all_its_tokens(experts: Path, sizes: Sizes) -> None:
    world, config = in_layout(learner_config(experts, loss=LOSS, experts=OVER_STEP), sizes)
    assert_alike(run_ranks(train_and_export, world, config, STEPS, BUDGET, True), *naive_run(experts, OVER_STEP))


def test_the_losses_are_the_same_when_layers_are_computed_again(experts: Path) -> None:
    again = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    config = learner_config(experts, loss=LOSS, experts=ROUTER, megatron_args=again)
    assert_alike(run_ranks(train_and_export, 1, config, STEPS, BUDGET, True), *naive_run(experts))


def test_without_coefficients_routers_only_report(experts: Path) -> None:
    config = learner_config(experts, loss=LOSS)
    ((plain, _),) = run_ranks(train_and_export, 1, config, STEPS[:1], BUDGET, True)
    ((lossy, _),) = run_ranks(train_and_export, 1, replace(config, experts=OVER_STEP), STEPS[:1], BUDGET, True)
    assert (plain[0].balance_loss, plain[0].router_z_loss) == (None, None)
    assert plain[0].expert_load == lossy[0].expert_load
    assert plain[0].grad_norm != pytest.approx(lossy[0].grad_norm, rel=1e-2)


def replayed(gate: Any, choices: Iterator[torch.Tensor], hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Do what Hugging Face's router does, with given experts."""
    logits = torch.nn.functional.linear(hidden.reshape(-1, gate.hidden_dim), gate.weight)
    chosen = next(choices)
    weights = logits.softmax(-1).gather(1, chosen)
    return logits, weights / weights.sum(-1, keepdim=True), chosen


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 1, 2, 2, 1), (1, 2, 2, 2, 1)], ids=named)
def test_an_update_uses_the_experts_that_were_chosen_before_the_first_one(experts: Path, sizes: Sizes) -> None:
    config = learner_config(experts, loss=LOSS, experts=Experts(replay=Replay.LEARNER))
    config = replace(config, optimizer=config.optimizer.model_copy(update={"learning_rate": FAST * 1e-3}))
    world, own = in_layout(config, sizes)
    _, second = run_ranks(train_as_chosen_before, world, own, STEPS, BUDGET)[0]
    naive = NaiveLearner(experts, LOSS, config.optimizer, [FAST * rate for rate in RATES])
    with torch.no_grad():
        before = [naive.model(torch.tensor(each.tokens)[None], output_router_logits=True) for each in STEPS[1]]
    naive.step(STEPS[0], True)
    anew = naive.step(STEPS[1], True)

    naive = NaiveLearner(experts, LOSS, config.optimizer, [FAST * rate for rate in RATES])
    naive.step(STEPS[0], True)
    for layer, block in enumerate(naive.model.model.layers):
        choices = [said.router_logits[layer].topk(2).indices for said in before]
        block.mlp.gate.forward = partial(replayed, block.mlp.gate, iter(2 * choices))
    wanted = naive.step(STEPS[1], True)
    assert second.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-4)
    assert wanted.grad_norm != pytest.approx(anew.grad_norm, rel=1e-3), "it matters"


def chosen_by_an_engine(tokens: int, layer: int) -> npt.NDArray[np.int16]:
    """Return two experts of a layer for all tokens but the last: never those that routers would choose alone."""
    places = np.arange(tokens - 1) + layer
    return np.stack([places % EXPERTS, (places + 1 + places // EXPERTS % 2) % EXPERTS], axis=1).astype(np.int16)


@pytest.mark.parametrize(
    ("sizes", "more"),
    [
        ((1, 1, 1, 1, 1), {}),
        ((2, 1, 2, 2, 1), {}),
        ((1, 2, 2, 2, 1), {}),
        ((2, 1, 1, 2, 1), {"sequence": True}),
        ((1, 1, 2, 1, 1), {"context": 2}),
    ],
    ids=["alone", "tensor", "stages", "sequence", "context"],
)
def test_an_update_uses_the_experts_that_the_engines_chose(experts: Path, sizes: Sizes, more: dict[str, Any]) -> None:
    loss = replace(LOSS, kl=None)  # the distance to the reference is beyond what an estimate is limited to
    config = learner_config(experts, loss=loss, experts=Experts(replay=Replay.ROLLOUT))
    world, own = in_layout(config, sizes)
    layers = range(NUM_LAYERS)
    given = [
        replace(each, experts=np.hstack([chosen_by_an_engine(len(each.tokens), layer) for layer in layers]))
        for each in STEPS[0]
    ]
    (step,), _ = run_ranks(train_and_export, world, changed(own, **more), [given], BUDGET, True)[0]

    naive, alone = (NaiveLearner(experts, loss, config.optimizer, RATES) for _ in range(2))
    for layer, block in enumerate(naive.model.model.layers):
        chosen = [torch.from_numpy(chosen_by_an_engine(len(each.tokens) + 1, layer)).long() for each in given]
        block.mlp.gate.forward = partial(replayed, block.mlp.gate, iter(2 * chosen))
    wanted, anew = naive.step(STEPS[0], True), alone.step(STEPS[0], True)
    assert step.loss == pytest.approx(wanted.loss, rel=1e-5)
    assert step.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-5)
    assert wanted.grad_norm != pytest.approx(anew.grad_norm, rel=1e-2), "it matters"


def test_log_probabilities_before_an_update_are_those_with_the_experts_of_the_engines(experts: Path) -> None:
    config = learner_config(experts, loss=LOSS, experts=Experts(replay=Replay.ROLLOUT))
    sample = STEPS[0][0]
    chosen = [chosen_by_an_engine(len(sample.tokens), layer) for layer in range(NUM_LAYERS)]
    ((found,),) = run_ranks(logprobs, 1, config, [replace(sample, experts=np.hstack(chosen))], BUDGET)

    naive = NaiveLearner(experts, LOSS, config.optimizer, RATES)
    with torch.no_grad():
        alone, _ = naive.logprobs(naive.model, sample)
        for layer, block in enumerate(naive.model.model.layers):
            whole = torch.from_numpy(chosen_by_an_engine(len(sample.tokens) + 1, layer)).long()
            block.mlp.gate.forward = partial(replayed, block.mlp.gate, iter([whole]))
        wanted, _ = naive.logprobs(naive.model, sample)
    assert found == pytest.approx(wanted.numpy(), abs=1e-5)
    assert alone.numpy() != pytest.approx(wanted.numpy(), abs=1e-2), "it matters"


def test_a_router_with_a_bias_is_replayed_too(tmp_path: Path) -> None:
    biased = tiny("Glm4MoeForCausalLM", tmp_path, tied=False)
    config = learner_config(biased, loss=LOSS, experts=Experts(replay=Replay.LEARNER))
    config = replace(config, optimizer=config.optimizer.model_copy(update={"learning_rate": FAST * 1e-3}))
    _, second = run_ranks(train_as_chosen_before, 1, config, STEPS, BUDGET)[0]

    def naive() -> NaiveLearner:
        return NaiveLearner(biased, LOSS, config.optimizer, [FAST * rate for rate in RATES])

    anew, before = naive(), naive()
    anew.step(STEPS[0], True)
    with torch.no_grad():
        ((block, logits),) = before.router_logits(STEPS[1])
    choices = iter(2 * [block.route_tokens_to_experts(each)[0] for each in logits])
    before.step(STEPS[0], True)
    block.route_tokens_to_experts = lambda logits: weighted(block, logits.sigmoid(), next(choices))
    before._router_loss = lambda sequences: (torch.zeros(()), {})
    wanted = before.step(STEPS[1], True)
    assert second.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-4)
    assert wanted.grad_norm != pytest.approx(anew.step(STEPS[1], True).grad_norm, rel=1e-3), "it matters"


def weighted(block: Any, scores: torch.Tensor, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what Hugging Face's mixture would, for given experts."""
    weights = scores.gather(1, chosen)
    return chosen, block.routed_scaling_factor * weights / weights.sum(-1, keepdim=True)
