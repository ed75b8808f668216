"""Metrics of an optimizer step: from tokens to micro-batches to ranks, as the table says."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.sections import ImportanceBound, ImportanceLevel, ImportanceSampling, Kl
from rljob_trainer.algorithms.algorithm import CLIP
from rljob_trainer.batches.loss_weights import by_token
from rljob_trainer.learners.config import LossSettings
from rljob_trainer.learners.objectives import objective
from rljob_trainer.learners.rank.loss.loss import policy_loss
from rljob_trainer.learners.rank.loss.reduction import TABLE, Sums, packed, token_sums, unpacked
from rljob_trainer.learners.rank.loss.value_loss import Fit, value_loss
from support.trainer.algorithm_batches import batch

CPU = torch.device("cpu")
Tokens = list[tuple[float, bool]]
TOKENS = st.lists(st.tuples(st.integers(-100, 100).map(float), st.booleans()), min_size=1, max_size=6)
"""value and whether it counts"""
RANKS = st.lists(st.lists(TOKENS, max_size=3), min_size=1, max_size=3).filter(any)
"""micro-batches of each rank"""


def sums(tokens: Tokens) -> Sums:
    values_R, counts_R = (torch.tensor(each, dtype=torch.float64) for each in zip(*tokens, strict=True))
    return token_sums(counts_R, entropy=values_R, clip_fraction=values_R > 0, max_mismatch=values_R.abs())


def reduced(ranks: list[list[Sums]]) -> dict[str, float]:
    """Return what every rank has after the collectives."""
    totals, largest = zip(*(packed(each, CPU) for each in ranks), strict=True)
    return unpacked(torch.stack(totals).sum(0), torch.stack(largest).amax(0))


@given(RANKS)
def test_a_mean_is_over_all_tokens_with_a_weight_however_they_are_spread(ranks: list[list[Tokens]]) -> None:
    found = reduced([[sums(tokens) for tokens in rank] for rank in ranks])
    kept = [value for rank in ranks for tokens in rank for value, counts in tokens if counts]
    assert found["response_tokens"] == len(kept)
    assert found["entropy"] == pytest.approx(sum(kept) / max(len(kept), 1))
    assert found["clip_fraction"] == pytest.approx(sum(value > 0 for value in kept) / max(len(kept), 1))
    assert found["max_mismatch"] == max(map(abs, kept), default=0.0)


def test_sums_add_up_and_counts_are_whole_numbers() -> None:
    batches = [{"loss": torch.tensor(0.5).double(), "train_tokens": torch.tensor(7.0).double()} for _ in range(3)]
    found = reduced([batches[:2], batches[2:]])
    assert found == {"loss": 1.5, "train_tokens": 21}
    assert isinstance(found["train_tokens"], int)


def test_a_rank_without_output_learns_what_others_measured() -> None:
    assert reduced([[], [sums([(2.0, True), (4.0, True)])]])["entropy"] == 3.0


def test_what_nobody_measured_has_no_value() -> None:
    assert "kl" not in reduced([[sums([(1.0, True)])]])
    assert "kl" not in token_sums(torch.ones(1).double(), kl=None)


def test_a_value_that_is_zero_was_measured() -> None:
    zeros_R = torch.zeros(2).double()
    assert reduced([[token_sums(zeros_R + 1, kl=zeros_R)]])["kl"] == 0.0


def test_a_metric_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(KeyError, match="entropi"):
        token_sums(torch.ones(1).double(), entropi=torch.ones(1))


def test_every_metric_of_tokens_is_measured_by_the_loss_of_the_policy_or_of_the_critic() -> None:
    b = batch(0)
    mask = b.mask_D_T.bool()
    settings = LossSettings(
        entropy_coefficient=0.1,
        kl=Kl(coefficient=0.1, estimator="k3"),
        importance=ImportanceSampling(kind=ImportanceBound.TRUNCATE, level=ImportanceLevel.TOKEN, low=0.0, high=2.0),
    )
    _, policy = policy_loss(
        b.new_D_T[mask], b.entropy_D_T[mask], b.targets(by_token(b.lengths_D)), settings, objective.load(CLIP)
    )
    ones_R = torch.ones(2).double()
    _, critic = value_loss(ones_R, Fit(ones_R, ones_R, ones_R), 0.2)
    assert {*policy, *critic} | {"train_tokens", "computed_tokens", "peak_seconds"} == TABLE.keys()


def test_sums_carry_no_gradient() -> None:
    values_R = torch.ones(2, dtype=torch.float64, requires_grad=True)
    assert not token_sums(torch.ones(2).double(), entropy=values_R)["entropy"].requires_grad


def test_every_rank_packs_as_much() -> None:
    with_output, without = packed([sums([(1.0, True)])], CPU), packed([], CPU)
    assert [each.shape for each in with_output] == [each.shape for each in without]
    assert sum(len(each) for each in without) == 2 * len(TABLE)
