"""Advantages against their papers' formulas and against verl 0.9.1, on a hundred random rollouts in fp64."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.sections import Algorithm, NormalizeBy
from rljob_trainer.algorithms.algorithm import GroupOutcome
from rljob_trainer.algorithms.factory import algorithm
from support.trainer import naive_algorithms
from support.trainer.algorithm_batches import NUM_BATCHES, Batch, batch

SEEDS = range(NUM_BATCHES)
SETTINGS = {
    "grpo-group": Algorithm(name="grpo"),
    "grpo-batch": Algorithm(name="grpo", normalize_by=NormalizeBy.BATCH),
    "grpo-none": Algorithm(name="grpo", normalize_by=NormalizeBy.NONE),
    "rloo": Algorithm(name="rloo"),
    "reinforcePlusPlus": Algorithm(name="reinforcePlusPlus"),
    "reinforcePlusPlusBaseline": Algorithm(name="reinforcePlusPlusBaseline"),
}
SUPPORT = Path(__file__).parents[3] / "support" / "trainer"
VERL = json.loads((SUPPORT / "verl_values.json").read_text())
KL_COEFFICIENT = 0.1

rewards = st.lists(st.floats(-10, 10), min_size=1, max_size=16)


def kl_of(b: Batch, kl: bool) -> torch.Tensor | None:
    """Return k3 of old against reference policy, with its weight."""
    x = b.old_D_T - b.reference_D_T
    return KL_COEFFICIENT * ((-x).exp() - 1 + x) if kl else None


def advantages(name: str, b: Batch, kl: bool = False) -> torch.Tensor:
    return b.padded(algorithm(SETTINGS[name]).advantage(b.outcomes(kl_of(b, kl))))


def of_one_group(name: str, rewards_G: tuple[float, ...]) -> list[float]:
    outcome = GroupOutcome(rewards_G, (2,) * len(rewards_G))
    return [float(value) for value in algorithm(SETTINGS[name]).advantage([outcome])[0]]


@pytest.mark.parametrize("kl", [False, True], ids=["", "kl in the reward"])
@pytest.mark.parametrize("name", SETTINGS)
def test_advantages_are_those_of_the_formula(name: str, kl: bool) -> None:
    ours = torch.cat([advantages(name, batch(seed), kl) for seed in SEEDS])
    formula = torch.cat([naive_algorithms.advantages(name, batch(seed), kl_of(batch(seed), kl)) for seed in SEEDS])
    torch.testing.assert_close(ours, formula, rtol=0, atol=1e-6)
    assert ours.count_nonzero() > 500


@pytest.mark.parametrize("name", [name for name in VERL if name.removesuffix("-kl") in SETTINGS])
def test_advantages_are_those_of_verl(name: str) -> None:
    plain, kl = name.removesuffix("-kl"), name.endswith("-kl")
    matrices = [advantages(plain, batch(seed), kl) for seed in SEEDS]
    ours = [
        [matrix.sum().item(), (matrix * batch(seed).probe_D_T).sum().item()]
        for seed, matrix in zip(SEEDS, matrices, strict=True)
    ]
    np.testing.assert_allclose(ours, VERL[name], rtol=0, atol=1e-6)


@given(rewards)
@pytest.mark.parametrize("name", SETTINGS)
def test_advantages_of_samples_of_equal_length_add_up_to_zero(name: str, group: list[float]) -> None:
    values = of_one_group(name, tuple(group))
    assert sum(values) == pytest.approx(0.0, abs=1e-6 * max(1.0, *map(abs, values)))


@pytest.mark.parametrize("group", [(1.0,), (0.1, 0.1, 0.1), (0.0,) * 8])
@pytest.mark.parametrize("name", SETTINGS)
def test_samples_that_agree_teach_exactly_nothing(name: str, group: tuple[float, ...]) -> None:
    assert of_one_group(name, group) == [0.0] * len(group)


@pytest.mark.parametrize("name", sorted(SETTINGS.keys() - {"reinforcePlusPlus"}))
def test_an_empty_group_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"^a group without samples has no advantages$"):
        of_one_group(name, ())


def test_a_penalty_at_a_token_counts_for_the_tokens_before_it() -> None:
    early, late = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    ((first, second),) = algorithm(SETTINGS["reinforcePlusPlus"]).advantage(
        [GroupOutcome((0.0, 0.0), (2, 2), (early, late))]
    )
    assert isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    assert first[0] == second[0] == second[1] < first[1]
