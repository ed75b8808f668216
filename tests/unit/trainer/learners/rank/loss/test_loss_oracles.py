"""Losses and their gradients against the papers' formulas and against verl 0.9.1, on random batches in fp64."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.sections import ImportanceBound, ImportanceLevel, ImportanceSampling, Kl
from rljob_trainer.algorithms.algorithm import CISPO, CLIP, GSPO
from rljob_trainer.batches.loss_weights import by_constant, by_sample, by_token
from rljob_trainer.learners.config import LossSettings
from rljob_trainer.learners.objectives import objective
from rljob_trainer.learners.rank.loss.loss import policy_loss
from rljob_trainer.learners.rank.loss.reduction import Sums
from support.trainer import naive_algorithms
from support.trainer.algorithm_batches import FAR, LONGEST, NUM_BATCHES, Batch, batch, far
from support.trainer.naive_algorithms import Wanted

SEEDS = range(NUM_BATCHES)
VERL = json.loads((Path(__file__).parents[5] / "support" / "trainer" / "verl_values.json").read_text())
OBJECTIVES = {
    "clip": LossSettings(clip_low=0.2, clip_high=0.28),
    "dual": LossSettings(clip_low=0.2, clip_high=0.28, dual_clip=1.5),
    "gspo": LossSettings(GSPO, clip_low=0.05, clip_high=0.08),
    "cispo": LossSettings(CISPO, clip_low=0.2, clip_high=0.28),
}
"""with the clip ranges that verl's values were made with"""
WEIGHTS = {"token": by_token, "sample": by_sample, "constant": lambda lengths: by_constant(LONGEST, lengths)}
IMPORTANCE = {
    "truncate-token": ImportanceSampling(kind=ImportanceBound.TRUNCATE, level=ImportanceLevel.TOKEN, low=0.0, high=1.5),
    "mask-token": ImportanceSampling(kind=ImportanceBound.MASK, level=ImportanceLevel.TOKEN, low=0.6, high=1.5),
    "truncate-sequence": ImportanceSampling(
        kind=ImportanceBound.TRUNCATE, level=ImportanceLevel.SEQUENCE, low=0.0, high=1.5
    ),
    "mask-sequence": ImportanceSampling(kind=ImportanceBound.MASK, level=ImportanceLevel.SEQUENCE, low=0.4, high=1.5),
}
IN_THE_LOSS = {f"{name}-{by}": (name, by, None) for name in OBJECTIVES for by in WEIGHTS}
CORRECTED = {f"clip-token-{kind}": ("clip", "token", kind) for kind in IMPORTANCE}


def settings(name: str, importance: str | None = None, **more: Any) -> LossSettings:
    return dataclasses.replace(OBJECTIVES[name], importance=IMPORTANCE[importance] if importance else None, **more)


def wanted(name: str, by: str, importance: str | None = None, **more: Any) -> Wanted:
    """Return the same for the oracle."""
    given = settings(name, importance)
    bounds = (given.importance.low, given.importance.high) if given.importance else (0.0, math.inf)
    plain = "clip" if name == "dual" else name
    return Wanted(plain, by, given.clip_low, given.clip_high, given.dual_clip, importance, bounds, **more)


def ours(b: Batch, given: LossSettings, by: str, on_policy: bool = False) -> tuple[torch.Tensor, torch.Tensor, Sums]:
    """Return loss, gradient for every padded token, and sums."""
    new = b.new_D_T.clone().requires_grad_()
    targets = b.targets(WEIGHTS[by](b.lengths_D))
    mask = b.mask_D_T.bool()
    targets = dataclasses.replace(targets, old_logprobs_R=None) if on_policy else targets
    loss, sums = policy_loss(new[mask], b.entropy_D_T[mask], targets, given, objective.load(given.objective))
    return loss.detach(), torch.autograd.grad(loss, new)[0], sums


def assert_equal_to_formula(given: LossSettings, oracle: Wanted) -> None:
    results = [ours(batch(seed), given, oracle.by, oracle.on_policy) for seed in SEEDS]
    news = [batch(seed).new_D_T.clone().requires_grad_() for seed in SEEDS]
    losses = [naive_algorithms.loss(oracle, batch(seed), new) for seed, new in zip(SEEDS, news, strict=True)]
    torch.testing.assert_close(
        torch.stack([each[0] for each in results]), torch.stack(losses).detach(), rtol=0, atol=1e-6
    )
    gradients = [torch.autograd.grad(loss, new)[0] for loss, new in zip(losses, news, strict=True)]
    torch.testing.assert_close(torch.cat([each[1] for each in results]), torch.cat(gradients), rtol=0, atol=1e-6)
    assert torch.cat(gradients).abs().max() > 0.01


def assert_equal_to_verl(case: str, pairs: Mapping[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
    found = [[loss.item(), (gradient * batch(seed).probe_D_T).sum().item()] for seed, (loss, gradient) in pairs.items()]
    np.testing.assert_allclose(found, VERL[case], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "by", "importance"), IN_THE_LOSS.values(), ids=IN_THE_LOSS)
def test_objectives_and_aggregations_are_those_of_the_papers(name: str, by: str, importance: str | None) -> None:
    assert_equal_to_formula(settings(name, importance), wanted(name, by, importance))


@pytest.mark.parametrize(("name", "importance"), list(zip(["clip", "cispo", "gspo", "dual"], IMPORTANCE, strict=True)))
def test_corrections_are_those_of_the_papers(name: str, importance: str) -> None:
    assert_equal_to_formula(settings(name, importance), wanted(name, "sample", importance))


@pytest.mark.parametrize(("name", "by", "importance"), (IN_THE_LOSS | CORRECTED).values(), ids=IN_THE_LOSS | CORRECTED)
def test_losses_are_those_of_verl(name: str, by: str, importance: str | None) -> None:
    case = "-".join(part for part in (name, by, importance) if part)
    assert_equal_to_verl(case, {seed: ours(batch(seed), settings(name, importance), by)[:2] for seed in SEEDS})


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_penalty_in_the_loss_is_that_of_verl(estimator: str) -> None:
    plain = settings("clip")
    penalised = settings("clip", kl=Kl(coefficient=1.0, estimator=estimator))  # type: ignore[arg-type]  # parametrize gives a str
    pairs = {seed: (ours(batch(seed), penalised, "token"), ours(batch(seed), plain, "token")) for seed in SEEDS}
    assert_equal_to_verl(
        estimator, {seed: (first[0] - second[0], first[1] - second[1]) for seed, (first, second) in pairs.items()}
    )


@pytest.mark.parametrize("times", FAR)
def test_the_penalty_of_a_far_reference_ends_where_verl_s_ends(times: int) -> None:
    plain, penalised = settings("clip"), settings("clip", kl=Kl(coefficient=1.0))
    batches = {seed: far(batch(seed), times) for seed in SEEDS}
    pairs = {seed: (ours(b, penalised, "token"), ours(b, plain, "token")) for seed, b in batches.items()}
    assert_equal_to_verl(
        f"k3-far-{times}",
        {seed: (first[0] - second[0], first[1] - second[1]) for seed, (first, second) in pairs.items()},
    )


@pytest.mark.parametrize("times", FAR)
def test_without_the_clamp_the_penalty_of_a_far_reference_is_that_of_the_formula(times: int) -> None:
    given = settings("clip", kl=Kl(coefficient=1.0, clamp=False))
    b = far(batch(3), times)
    new = b.new_D_T.clone().requires_grad_()
    formula = naive_algorithms.loss(wanted("clip", "token", kl=("k3", 1.0)), b, new)
    loss, gradient, _ = ours(b, given, "token")
    torch.testing.assert_close(loss, formula.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(formula, new)[0])
    assert gradient.abs().max() > 1.0


@pytest.mark.parametrize(("estimator", "by"), [("k1", "token"), ("k2", "sample"), ("k3", "constant")])
def test_penalty_bonus_and_correction_add_up(estimator: str, by: str) -> None:
    kl = Kl(coefficient=0.3, estimator=estimator)  # type: ignore[arg-type]
    given = settings("clip", "truncate-token", kl=kl, entropy_coefficient=0.2)
    assert_equal_to_formula(given, wanted("clip", by, "truncate-token", kl=(estimator, 0.3), entropy=0.2))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_on_policy_every_objective_has_the_gradient_of_the_advantage(name: str) -> None:
    assert_equal_to_formula(settings(name), wanted(name, "token", on_policy=True))
    gradients = torch.cat([ours(batch(seed), settings(name), "token", on_policy=True)[1] for seed in SEEDS])
    plain = torch.cat([ours(batch(seed), settings("clip"), "token", on_policy=True)[1] for seed in SEEDS])
    torch.testing.assert_close(gradients, plain)


@pytest.mark.parametrize("importance", IMPORTANCE)
def test_the_mean_weight_and_the_share_that_was_cut_are_measured(importance: str) -> None:
    b, given = batch(3), IMPORTANCE[importance]
    sums = ours(b, settings("clip", importance), "token")[2]
    oracle = wanted("clip", "token", importance)
    free = dataclasses.replace(oracle, correction=f"truncate-{given.level.lower()}", bounds=(0.0, math.inf))
    places = [(row, t) for row, length in enumerate(b.lengths_D) for t in range(length)]
    raw = [naive_algorithms.correction(free, b, b.old_D_T, *place) for place in places]
    used = [naive_algorithms.correction(oracle, b, b.old_D_T, *place) for place in places]
    assert sums["response_tokens"].item() == len(places)
    assert sums["importance_weight"].item() == pytest.approx(sum(used))
    assert sums["importance_cut"].item() == sum(not given.low <= weight <= given.high for weight in raw) > 0


def test_without_a_correction_no_weight_is_measured() -> None:
    sums = ours(batch(0), settings("clip"), "token")[2]
    assert not {"importance_weight", "importance_cut"} & sums.keys()


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("importance", IMPORTANCE)
def test_a_sequence_without_weight_changes_nothing(name: str, importance: str) -> None:
    b = batch(5)
    mask = b.mask_D_T.bool()
    given = settings(name, importance)
    targets = b.targets((0.0, *by_sample(b.lengths_D[1:])))
    without = dataclasses.replace(targets, advantages_R=targets.advantages_R * 7)
    kept = torch.arange(len(targets.weights_R)) >= b.lengths_D[0]
    mixed = dataclasses.replace(targets, advantages_R=torch.where(kept, targets.advantages_R, without.advantages_R))
    new = b.new_D_T[mask].requires_grad_()
    losses = [
        policy_loss(new, b.entropy_D_T[mask], each, given, objective.load(given.objective))[0]
        for each in (targets, mixed)
    ]
    gradients = [torch.autograd.grad(loss, new, retain_graph=True)[0] for loss in losses]
    assert losses[0] == losses[1]
    assert gradients[0][: b.lengths_D[0]].count_nonzero() == 0
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("importance", IMPORTANCE)
def test_a_token_without_weight_is_as_if_it_were_not_there(name: str, importance: str) -> None:
    b, given = batch(8), settings(name, importance)
    whole = b.targets(by_token(b.lengths_D))
    kept = torch.arange(len(whole.weights_R)) % 3 != 1
    masked = dataclasses.replace(whole, weights_R=whole.weights_R * kept)
    tensors = {
        field: value[kept] for field, value in dataclasses.asdict(masked).items() if isinstance(value, torch.Tensor)
    }
    mask = b.mask_D_T.bool()
    new, entropy = b.new_D_T[mask].requires_grad_(), b.entropy_D_T[mask]
    chosen = objective.load(given.objective)
    loss, sums = policy_loss(new, entropy, masked, given, chosen)
    without, _ = policy_loss(new[kept], entropy[kept], dataclasses.replace(masked, **tensors), given, chosen)
    torch.testing.assert_close(loss, without)
    torch.testing.assert_close(torch.autograd.grad(loss, new), torch.autograd.grad(without, new))
    assert 0 < sums["response_tokens"].item() == kept.sum().item() < len(kept)


def test_an_objective_that_is_not_there_is_named() -> None:
    assert objective.load(CLIP)
    with pytest.raises(ValueError, match=r"clip:clap is not a policy objective.* has no clap"):
        objective.load("rljob_trainer.learners.objectives.clip:clap")
