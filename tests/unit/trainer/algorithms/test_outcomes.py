"""What algorithms are given: lists of a group that belong together, and a trial with made-up groups."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.sections import Algorithm as Settings
from rljob_api.sections import Critic, Teacher
from rljob_trainer.algorithms.algorithm import Algorithm, GroupOutcome, PerGroup, Value
from rljob_trainer.algorithms.errors import AlgorithmError
from rljob_trainer.algorithms.factory import Checked, algorithm, tried

TOKENS = (np.array([0.5, 1.0]), np.array([0.25]))
WHOLE = GroupOutcome((1.0, 0.0), (2, 1), penalties_G=TOKENS, values_G=TOKENS)
CHOSEN = {
    "ppo": algorithm(Settings(name="ppo", critic=Critic(learning_rate=1.0))),
    "reinforcePlusPlus": algorithm(Settings(name="reinforcePlusPlus")),
    "distillation": algorithm(Settings(name="distillation", teacher=Teacher(checkpoint="models/teacher"))),
    "grpo": algorithm(Settings(name="grpo")),
    "a user's": Algorithm(Checked("mine:x", lambda outcomes: [(0.5, 1.5)])),
}
CUT = {
    "rewards_G": ["ppo", "reinforcePlusPlus", "distillation", "grpo"],
    "lengths_G": ["ppo", "reinforcePlusPlus", "a user's"],
    "penalties_G": ["reinforcePlusPlus", "distillation", "grpo"],
    "values_G": ["ppo"],
}
"""a list of a group, and the algorithms that need it beside another"""


@pytest.mark.parametrize(
    ("name", "shorter"),
    [
        ("reinforcePlusPlus", {"lengths_G": (2,), "penalties_G": TOKENS[:1]}),
        ("ppo", {"lengths_G": (2,), "values_G": TOKENS[:1]}),
    ],
)
def test_rewards_are_not_dropped_where_all_other_lists_are_shorter(name: str, shorter: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="shorter"):
        CHOSEN[name].advantage([replace(WHOLE, **shorter)])


def test_a_critic_is_fitted_to_all_samples_or_to_none() -> None:
    returns = CHOSEN["ppo"].returns
    assert returns is not None
    assert len(returns(WHOLE)) == 2
    with pytest.raises(ValueError, match="shorter"):
        returns(replace(WHOLE, values_G=TOKENS[:1]))


@pytest.mark.parametrize(("cut", "name"), [(cut, name) for cut, names in CUT.items() for name in names])
def test_a_group_whose_lists_do_not_belong_together_is_refused(cut: str, name: str) -> None:
    assert CHOSEN[name].advantage([WHOLE])
    with pytest.raises(ValueError, match=r"shorter|longer"):
        CHOSEN[name].advantage([replace(WHOLE, **{cut: getattr(WHOLE, cut)[:1]})])


@dataclass
class Recording:
    """Learns nothing from what it is given, and keeps it."""

    given: list[GroupOutcome] = field(default_factory=list)

    def __call__(self, outcomes: Sequence[GroupOutcome]) -> Sequence[Sequence[Value]]:
        self.given.extend(outcomes)
        return [(0.0,) * len(outcome.rewards_G) for outcome in outcomes]


def test_a_trial_has_a_group_whose_samples_differ_and_one_whose_samples_agree() -> None:
    recording = Recording()
    tried(Algorithm(recording), 4)
    assert [outcome.rewards_G for outcome in recording.given] == [(0.0, 1.0, 0.0, 1.0), (0.25,) * 4]
    assert [outcome.lengths_G for outcome in recording.given] == [(3,) * 4] * 2
    for outcome in recording.given:
        zeros = [[0.0] * 3] * 4
        assert [each.tolist() for each in outcome.penalties_G or ()] == zeros
        assert [each.tolist() for each in outcome.values_G or ()] == zeros


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=2))
def test_a_rollout_of_two_tokens_is_whitened(rewards: list[int]) -> None:
    outcome = GroupOutcome(tuple(map(float, rewards)), (1, 1))
    (found,) = CHOSEN["reinforcePlusPlus"].advantage([outcome])
    scale = np.sqrt((rewards[0] - rewards[1]) ** 2 / 2 + 1e-8)
    half = (rewards[0] - rewards[1]) / 2
    assert [float(value) for value in found] == pytest.approx([half / scale, -half / scale])


def test_advantages_that_do_not_fit_are_shown_with_what_is_wanted() -> None:
    checked = Checked("mine:x", PerGroup(lambda scores: scores[:1]))
    wanted = (
        r"^algorithm\.name mine:x: advantages \(1\.0,\) for rewards \(1\.0, 0\.0\); one finite number for each sample "
        r"is wanted, or one for each of its response tokens$"
    )
    with pytest.raises(AlgorithmError, match=wanted):
        checked([replace(WHOLE, penalties_G=None)])
