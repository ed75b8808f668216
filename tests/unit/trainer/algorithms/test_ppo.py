"""GAE against its paper's formula and against verl 0.9.1, on a hundred random rollouts in fp64."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from rljob_api.sections import Algorithm, Critic
from rljob_trainer.algorithms.algorithm import GroupOutcome
from rljob_trainer.algorithms.errors import AlgorithmError
from rljob_trainer.algorithms.factory import algorithm
from support.trainer import naive_algorithms
from support.trainer.algorithm_batches import NUM_BATCHES, Batch, batch

SEEDS = range(NUM_BATCHES)
VERL = json.loads((Path(__file__).parents[3] / "support" / "trainer" / "verl_values.json").read_text())
GAMMA, LAMBDA = 0.97, 0.9
"""that verl's values were made with"""


def kl_of(b: Batch, kl: bool) -> torch.Tensor | None:
    """Return k3 of old against reference policy, with its weight."""
    x = b.old_D_T - b.reference_D_T
    return 0.1 * ((-x).exp() - 1 + x) if kl else None


def ours(b: Batch, gamma: float, lambda_: float, kl: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and returns of every token."""
    critic = Critic(learning_rate=1.0, gamma=gamma, lambda_=lambda_)
    chosen, outcomes = algorithm(Algorithm(name="ppo", critic=critic)), b.outcomes(kl_of(b, kl))
    assert chosen.returns is not None
    return b.padded(chosen.advantage(outcomes)), b.padded([chosen.returns(each) for each in outcomes])


@pytest.mark.parametrize("kl", [False, True], ids=["", "kl in the reward"])
@pytest.mark.parametrize(("gamma", "lambda_"), [(1.0, 1.0), (GAMMA, LAMBDA), (0.9, 0.0), (0.0, 1.0), (1.0, 0.5)])
def test_advantages_and_returns_are_those_of_the_formula(gamma: float, lambda_: float, kl: bool) -> None:
    found = [ours(batch(seed), gamma, lambda_, kl) for seed in SEEDS]
    wanted = [
        naive_algorithms.generalized_advantages(batch(seed), gamma, lambda_, kl_of(batch(seed), kl)) for seed in SEEDS
    ]
    for one, other in zip(zip(*found, strict=True), zip(*wanted, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(one), torch.cat(other), rtol=0, atol=1e-6)
        assert torch.cat(one).count_nonzero() > 400


@pytest.mark.parametrize("kl", [False, True], ids=["", "kl in the reward"])
@pytest.mark.parametrize("what", ["ppo", "ppo-returns"])
def test_advantages_and_returns_are_those_of_verl(what: str, kl: bool) -> None:
    matrices = [ours(batch(seed), GAMMA, LAMBDA, kl)["returns" in what] for seed in SEEDS]
    found = [
        [matrix.sum().item(), (matrix * batch(seed).probe_D_T).sum().item()]
        for seed, matrix in zip(SEEDS, matrices, strict=True)
    ]
    np.testing.assert_allclose(found, VERL[what + "-kl" * kl], rtol=0, atol=1e-6)


def test_a_critic_that_knows_every_return_leaves_no_advantage() -> None:
    chosen = algorithm(Algorithm(name="ppo", critic=Critic(learning_rate=1.0)))
    outcome = GroupOutcome((1.0, 0.0), (3, 2), values_G=(np.ones(3), np.zeros(2)))
    assert [np.asarray(value).tolist() for value in chosen.advantage([outcome])[0]] == [0.0, 0.0]
    assert chosen.returns is not None
    assert [each.tolist() for each in chosen.returns(outcome)] == [[1.0] * 3, [0.0] * 2]


def test_a_response_without_tokens_has_neither_advantage_nor_return() -> None:
    chosen = algorithm(Algorithm(name="ppo", critic=Critic(learning_rate=1.0)))
    outcome = GroupOutcome((1.0, 0.5), (0, 2), values_G=(np.zeros(0), np.array([0.5, 0.25])))
    assert [np.shape(value) for value in chosen.advantage([outcome])[0]] == [(0,), (2,)]
    assert chosen.returns is not None
    assert [len(each) for each in chosen.returns(outcome)] == [0, 2]


def test_without_a_critic_there_is_no_ppo() -> None:
    with pytest.raises(AlgorithmError, match=r"^ppo needs spec\.algorithm\.critic$"):
        algorithm(Algorithm(name="ppo"))
    chosen = algorithm(Algorithm(name="ppo", critic=Critic(learning_rate=1.0)))
    with pytest.raises(AlgorithmError, match=r"^ppo needs the values of a critic; set spec\.algorithm\.critic$"):
        chosen.advantage([GroupOutcome((1.0, 0.0), (1, 1))])
