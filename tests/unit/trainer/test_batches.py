"""From scored groups to optimizer steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.advantage import GroupRelative
from rljob_trainer.batches import Batches, loss_weights
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup


def scored(uid: str, rewards: tuple[float, ...], length: int = 2) -> ScoredGroup:
    prompt = Prompt(uid, "q", "q", (1, 2, 3), "", {})
    sample = Sample((5,) * length, (-0.5,) * length, "", 0, "stop", "engine-0")
    return ScoredGroup(Group(prompt, (sample,) * len(rewards)), rewards)


def batches(**changes) -> Batches:
    settings = {
        "advantage": GroupRelative(normalize_std=False),
        "loss_by_token": True,
        "keep_zero_advantage": False,
        "global_batch_size": 4,
        "data_parallel": 1,
        "max_tokens": 1000,
    }
    return Batches(**settings | changes)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.booleans())
def test_the_weights_of_a_step_add_up_to_one(lengths, by_token):
    weights = loss_weights(lengths, by_token)
    assert sum(weight * length for weight, length in zip(weights, lengths, strict=True)) == pytest.approx(1.0)


def test_by_sample_a_long_sample_counts_as_much_as_a_short_one():
    short, long = loss_weights([1, 9], by_token=False)
    assert short == pytest.approx(9 * long)


def test_samples_without_advantage_are_left_out_but_count_in_the_mean():
    (step,) = batches()((scored("0:0", (1.0, 0.0)), scored("0:1", (1.0, 1.0))))
    (micro_batch,) = step.micro_batches_by_rank[0]
    assert len(micro_batch.cu_seqlens_S1) - 1 == 2
    np.testing.assert_allclose(micro_batch.weights_R, 1 / 8)


def test_samples_without_advantage_stay_when_another_term_needs_them():
    (step,) = batches(keep_zero_advantage=True)((scored("0:0", (1.0, 0.0)), scored("0:1", (1.0, 1.0))))
    assert sum(len(micro.cu_seqlens_S1) - 1 for micro in step.micro_batches_by_rank[0]) == 4


def test_a_rollout_splits_into_its_optimizer_steps():
    steps = batches(global_batch_size=2)((scored("0:0", (1.0, 0.0)), scored("0:1", (0.0, 1.0))))
    assert [step.samples for step in steps] == [2, 2]


def test_the_hidden_state_before_each_response_token_predicts_it():
    (step,) = batches(global_batch_size=2)((scored("0:0", (1.0, 0.0)),))
    (micro_batch,) = step.micro_batches_by_rank[0]
    assert micro_batch.tokens_T[micro_batch.positions_R + 1].tolist() == micro_batch.targets_R.tolist() == [5] * 4
