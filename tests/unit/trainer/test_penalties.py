"""What the learner says of packed tokens finds its way back to the samples."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

from rljob_trainer.penalties import KlPenalties, no_penalties
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup


@dataclass
class Learner:
    """Says of each token that its divergence is a tenth of its id."""

    asked: list[str] = field(default_factory=list)

    def kl(self, shares, estimator):
        self.asked.append(estimator)
        return [[batch.targets_R.astype(np.float32) / 10 for batch in share] for share in shares]

    @contextmanager
    def training(self):
        self.asked.append("learner's turn")
        yield
        self.asked.append("engines' turn")


def scored(uid: str, *responses: tuple[int, ...]) -> ScoredGroup:
    prompt = Prompt(uid, "q", "q", (1, 2, 3), "", {})
    samples = tuple(Sample(each, (-0.5,) * len(each), "", 0, "stop", "engine-0") for each in responses)
    return ScoredGroup(Group(prompt, samples), (0.0,) * len(samples))


def penalties(learner: Learner, ranks: int = 1, budget: int = 12) -> KlPenalties:
    return KlPenalties(partial(learner.kl, estimator="k2"), learner, 0.5, ranks, budget)


GROUPS = (scored("0:0", (7, 8, 9), (4,), (5, 6)), scored("0:1", (10, 20), (30, 40, 50, 60)))


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("budget", [1, 12, 1000])
def test_every_sample_gets_the_penalties_of_its_own_tokens(ranks: int, budget: int) -> None:
    found = penalties(Learner(), ranks, budget)(GROUPS)
    assert [[len(each) for each in group] for group in found.groups] == [[3, 1, 2], [2, 4]]
    np.testing.assert_allclose(np.concatenate(found.groups[0]), np.array([7, 8, 9, 4, 5, 6]) / 20, rtol=1e-6)
    np.testing.assert_allclose(np.concatenate(found.groups[1]), np.array([10, 20, 30, 40, 50, 60]) / 20, rtol=1e-6)
    assert found.kl == pytest.approx((39 + 210) / 12 / 10)


def test_the_learner_measures_in_a_turn_of_its_own() -> None:
    learner = Learner()
    penalties(learner)(GROUPS)
    assert learner.asked == ["learner's turn", "k2", "engines' turn"]


def test_a_response_without_tokens_has_no_penalty() -> None:
    found = penalties(Learner())((scored("0:0", (), (4,)),))
    assert [len(each) for each in found.groups[0]] == [0, 1]


def test_nobody_is_asked_about_no_tokens() -> None:
    learner = Learner()
    found = penalties(learner)((scored("0:0", (), ()),))
    assert ([len(each) for each in found.groups[0]], found.kl, learner.asked) == ([0, 0], 0.0, [])


def test_without_a_penalty_nothing_is_taken_away() -> None:
    assert no_penalties(GROUPS) is None
