"""What the learner says of packed tokens finds its way back to the samples."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

from rljob_trainer.batches.packing import Packing
from rljob_trainer.batches.penalties import KlPenalties, no_penalties
from rljob_trainer.batches.token_values import Measure, Measurement
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup, Segment


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
    return half_of(partial(learner.kl, estimator="k2"), Packing(ranks, budget), learner)


def half_of(measure: Measure, packing: Packing, learner: Learner | None = None) -> KlPenalties:
    return KlPenalties(Measurement(measure, learner or Learner(), packing), 0.5)


GROUPS = (scored("0:0", (7, 8, 9), (4,), (5, 6)), scored("0:1", (10, 20), (30, 40, 50, 60)))


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("budget", [1, 12, 1000])
def test_every_sample_gets_the_penalties_of_its_own_tokens(ranks: int, budget: int) -> None:
    found = penalties(Learner(), ranks, budget)(GROUPS)
    assert [[len(each) for each in group] for group in found.groups] == [[3, 1, 2], [2, 4]]
    np.testing.assert_allclose(np.concatenate(found.groups[0]), np.array([7, 8, 9, 4, 5, 6]) / 20, rtol=1e-6)
    np.testing.assert_allclose(np.concatenate(found.groups[1]), np.array([10, 20, 30, 40, 50, 60]) / 20, rtol=1e-6)
    assert found.kl == pytest.approx((39 + 210) / 12 / 10)


def test_the_learner_measures_a_multiple_of_micro_batches() -> None:
    sizes: list[int] = []

    def measure(shares):
        sizes.extend(map(len, shares))
        return Learner().kl(shares, "k2")

    several = half_of(measure, Packing(1, 1000, multiple=4))(GROUPS)
    alone = half_of(measure, Packing(1, 1000))(GROUPS)
    assert sizes == [4, 1]
    assert several.kl == alone.kl
    for found, wanted in zip(several.groups, alone.groups, strict=True):
        np.testing.assert_array_equal(np.concatenate(found), np.concatenate(wanted))


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


def test_a_mean_is_taken_over_the_tokens_of_all_samples() -> None:
    learner = Learner()
    measured = Measurement(partial(learner.kl, estimator="k1"), learner, Packing(2, 12))
    assert measured.mean([group.group for group in GROUPS]) == pytest.approx((39 + 210) / 12 / 10)


def test_tokens_of_the_environment_are_not_measured() -> None:
    prompt = Prompt("0:0", "q", "q", (1, 2, 3), "", {})
    segments = (Segment(1, "a", True), Segment(2, "b", False), Segment(1, "c", True))
    mixed = Sample((7, 50, 60, 9), (-0.5, 0.0, 0.0, -0.5), "", 0, "stop", "engine-0", segments)
    found = penalties(Learner())((ScoredGroup(Group(prompt, (mixed,)), (0.0,)),))
    np.testing.assert_allclose(found.groups[0][0], np.array([7, 9]) / 20, rtol=1e-6)


def test_responses_that_no_engine_made_are_measured_too() -> None:
    prompt = Prompt("0:0", "q", "q", (1, 2, 3), "", {})
    group = ScoredGroup(Group(prompt, (Sample((7, 9), (), "", 0, "stop", ""),)), (0.0,))
    assert penalties(Learner())((group,)).kl == pytest.approx(0.8)
    given = []
    half_of(lambda shares: given.extend(shares) or Learner().kl(shares, "k1"), Packing(1, 9))((group,))
    assert given[0][0].logprobs_R.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("cut", [lambda found: found[:-1], lambda found: [share[:-1] for share in found]])
def test_a_learner_that_answers_for_fewer_tokens_is_not_believed(cut) -> None:
    learner = Learner()
    measured = Measurement(lambda shares: cut(learner.kl(shares, "k1")), learner, Packing(2, 12))
    with pytest.raises(ValueError, match="shorter"):
        measured(GROUPS)


def test_numbers_belong_to_samples_by_their_place_also_behind_an_empty_one() -> None:
    learner = Learner()
    measured = Measurement(partial(learner.kl, estimator="k1"), learner, Packing(1, 1000))
    found = measured((scored("0:0", (), (4,)), scored("0:1", (5,), (), (6, 7))))
    assert [[each.tolist() for each in group] for group in found] == [
        [[], [pytest.approx(0.4)]],
        [[pytest.approx(0.5)], [], pytest.approx([0.6, 0.7])],
    ]
    assert found[0][0].dtype == found[0][1].dtype == np.float64


def test_penalties_are_measured_within_the_budget_of_a_micro_batch_and_by_all_ranks() -> None:
    asked = []

    def measure(shares):
        assert all((batch.weights_R == 1.0).all() for share in shares for batch in share)
        assert all((batch.advantages_R == 0.0).all() for share in shares for batch in share)
        asked.extend([[len(batch.tokens_T) for batch in share] for share in shares])
        return [[np.zeros(len(batch.targets_R), np.float32) for batch in share] for share in shares]

    half_of(measure, Packing(2, 9))((scored("0:0", (1,), (2,)), scored("0:1", (3,), (4,))))
    assert asked == [[8], [8]]
