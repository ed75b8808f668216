"""What holds of advantages whatever the rewards: sums, shifts and scales."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.sections import Algorithm, NormalizeBy
from rljob_trainer.algorithms.algorithm import GroupOutcome
from rljob_trainer.algorithms.baseline import EPSILON, deviation
from rljob_trainer.algorithms.factory import algorithm

rewards = st.integers(-1000, 1000).map(lambda number: number / 100)
groups = st.lists(rewards, min_size=1, max_size=8)
rollouts = st.lists(groups, min_size=1, max_size=4)
CENTRED = {
    **{f"grpo by {by}": Algorithm(name="grpo", normalize_by=by) for by in NormalizeBy},
    "rloo": Algorithm(name="rloo"),
}
WHITENED = {name: Algorithm(name=name) for name in ("reinforcePlusPlus", "reinforcePlusPlusBaseline")}
SHIFTED = CENTRED | WHITENED


def advantages(settings: Algorithm, rollout: list[list[float]]) -> list[list[float]]:
    outcomes = [GroupOutcome(tuple(group), (2,) * len(group)) for group in rollout]
    return [[float(value) for value in group] for group in algorithm(settings).advantage(outcomes)]


@pytest.mark.parametrize("settings", CENTRED.values(), ids=CENTRED)
@given(rollouts)
def test_the_advantages_of_a_group_add_up_to_zero(settings: Algorithm, rollout: list[list[float]]) -> None:
    for group in advantages(settings, rollout):
        assert sum(group) == pytest.approx(0.0, abs=1e-6 * (1 + max(map(abs, group))))


@pytest.mark.parametrize("settings", SHIFTED.values(), ids=SHIFTED)
@given(rollouts, rewards)
def test_rewards_that_are_all_higher_change_nothing(
    settings: Algorithm, rollout: list[list[float]], shift: float
) -> None:
    moved = [[reward + shift for reward in group] for group in rollout]
    for one, other in zip(advantages(settings, rollout), advantages(settings, moved), strict=True):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("by", [NormalizeBy.GROUP, NormalizeBy.BATCH])
@given(rollouts, st.sampled_from([2.0, 10.0]))
def test_normalised_rewards_may_be_in_any_unit(by: NormalizeBy, rollout: list[list[float]], unit: float) -> None:
    settings = Algorithm(name="grpo", normalize_by=by)
    scaled = [[reward * unit for reward in group] for group in rollout]
    for one, other in zip(advantages(settings, rollout), advantages(settings, scaled), strict=True):
        assert one == pytest.approx(other, rel=300 * EPSILON, abs=1e-9)


@given(rollouts)
def test_without_normalisation_the_unit_stays(rollout: list[list[float]]) -> None:
    settings = Algorithm(name="grpo", normalize_by=NormalizeBy.NONE)
    doubled = [[2 * reward for reward in group] for group in rollout]
    for one, other in zip(advantages(settings, rollout), advantages(settings, doubled), strict=True):
        assert [2 * value for value in one] == pytest.approx(other)


@pytest.mark.parametrize("settings", SHIFTED.values(), ids=SHIFTED)
@given(st.lists(groups, min_size=1, max_size=4), st.data())
def test_a_better_sample_of_a_group_never_has_a_smaller_advantage(
    settings: Algorithm, rollout: list[list[float]], data: st.DataObject
) -> None:
    group = data.draw(st.integers(0, len(rollout) - 1))
    found = advantages(settings, rollout)[group]
    order = np.argsort(rollout[group], kind="stable")
    assert (np.diff(np.asarray(found)[order]) >= -1e-9).all()


@pytest.mark.parametrize("scores", [[], [3.0]])
def test_less_than_two_scores_are_divided_by_one(scores: list[float]) -> None:
    assert deviation(scores) == 1.0


def test_distillation_without_a_teachers_settings_leaves_rewards_out() -> None:
    outcome = GroupOutcome((1.0, 0.0), (1, 1), (np.array([0.5]), np.array([0.25])))
    assert advantages_of_tokens("distillation", outcome) == [[-0.5], [-0.25]]


def advantages_of_tokens(name: str, outcome: GroupOutcome) -> list[list[float]]:
    (group,) = algorithm(Algorithm(name=name)).advantage([outcome])
    return [np.asarray(value).tolist() for value in group]
