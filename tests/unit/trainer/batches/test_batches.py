"""From scored groups to optimizer steps."""

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.sections import NormalizeBy
from rljob_trainer.algorithms.grpo import GroupRelative
from rljob_trainer.algorithms.ppo import GeneralizedAdvantage
from rljob_trainer.algorithms.reinforce_plus_plus import returns_whitened
from rljob_trainer.algorithms.sft import ones
from rljob_trainer.batches.batches import Batches, shares
from rljob_trainer.batches.loss_weights import by_constant, by_sample, by_token
from rljob_trainer.batches.packing import UNKNOWN, Packing
from rljob_trainer.batches.penalties import Penalised, no_penalties
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup, Segment


def scored(uid: str, rewards: tuple[float, ...], length: int = 2) -> ScoredGroup:
    prompt = Prompt(uid, "q", "q", (1, 2, 3), "", {})
    sample = Sample((5,) * length, (-0.5,) * length, "", 0, "stop", "engine-0")
    return ScoredGroup(Group(prompt, (sample,) * len(rewards)), rewards)


def batches(**changes) -> Batches:
    settings = {
        "advantage": GroupRelative(NormalizeBy.NONE),
        "penalties": no_penalties,
        "weights": by_token,
        "keep_zero_advantage": False,
        "global_batch_size": 4,
        "packing": Packing(1, 1000),
    }
    return Batches(**settings | changes)


def test_samples_without_advantage_are_left_out_but_count_in_the_mean():
    (step,) = batches()((scored("0:0", (1.0, 0.0)), scored("0:1", (1.0, 1.0))))
    (micro_batch,) = step.micro_batches_by_rank[0]
    assert len(micro_batch.cu_seqlens_S1) - 1 == 2
    np.testing.assert_allclose(micro_batch.weights_R, 1 / 8)


def test_micro_batches_of_a_step_are_a_multiple():
    (step,) = batches(packing=Packing(1, 1000, multiple=4))((scored("0:0", (1.0, 0.0)), scored("0:1", (1.0, 1.0))))
    assert [len(share) for share in step.micro_batches_by_rank] == [4]


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


def test_penalties_are_taken_from_the_rewards_token_by_token():
    taken = Penalised(groups=((np.array([0.0, 1.0]), np.array([0.5, 0.5])),), kl=0.25)
    (step,) = batches(global_batch_size=2, advantage=returns_whitened, penalties=lambda groups: taken)(
        (scored("0:0", (1.0, 0.0)),)
    )
    (micro_batch,) = step.micro_batches_by_rank[0]
    assert step.kl == 0.25
    returns = np.array([0.0, 0.0, -1.0, -0.5])  # reward less what comes at and after each token
    np.testing.assert_allclose(micro_batch.advantages_R, (returns - returns.mean()) / returns.std(ddof=1), rtol=1e-5)
    np.testing.assert_allclose(micro_batch.weights_R, 1 / 4)


def test_without_penalties_no_divergence_is_reported():
    (step,) = batches(global_batch_size=2)((scored("0:0", (1.0, 0.0)),))
    assert step.kl is None


def with_a_tool(length: int = 2, dropped: bool = False) -> Sample:
    """Return a sample of which the model wrote the first and the last tokens, and a tool the two between."""
    segments = (Segment(length, "1+1", True), Segment(2, "2", False), Segment(length, "two", True))
    logprobs = (-0.5,) * length + (0.0,) * 2 + (-0.25,) * length
    return Sample((5,) * length + (6,) * 2 + (7,) * length, logprobs, "two", 0, "stop", "", segments, dropped)


def group_of(*samples: Sample) -> ScoredGroup:
    prompt = Prompt("0:0", "q", "q", (1, 2, 3), "", {})
    return ScoredGroup(Group(prompt, samples), tuple(float(index) for index in range(len(samples))))


def trained(*samples: Sample, **changes):
    (step,) = batches(global_batch_size=len(samples), **changes)((group_of(*samples),))
    return step.micro_batches_by_rank[0][0]


def test_tokens_of_the_environment_are_no_targets():
    micro_batch = trained(with_a_tool(), with_a_tool())
    assert micro_batch.targets_R.tolist() == [5, 5, 7, 7] * 2
    np.testing.assert_allclose(micro_batch.logprobs_R, [-0.5, -0.5, -0.25, -0.25] * 2)


@pytest.mark.parametrize(
    ("weights", "first", "last"),
    [(by_token, 1 / 6, 1 / 6), (by_sample, 1 / 8, 1 / 4), (partial(by_constant, 10), 1 / 20, 1 / 20)],
    ids=["token", "sample", "constant"],
)
def test_losses_count_the_tokens_of_the_model_alone(weights, first: float, last: float):
    micro_batch = trained(with_a_tool(length=2), with_a_tool(length=1), weights=weights)
    np.testing.assert_allclose(micro_batch.weights_R, [first] * 4 + [last] * 2, rtol=1e-6)


def test_a_dropped_sample_is_not_trained_on_and_its_reward_counts():
    micro_batch = trained(with_a_tool(), with_a_tool(dropped=True))
    assert micro_batch.targets_R.tolist() == [5, 5, 7, 7]
    np.testing.assert_allclose(micro_batch.advantages_R, -0.5)  # rewards 0 and 1
    np.testing.assert_allclose(micro_batch.weights_R, 1 / 4)


def test_advantages_are_normalised_over_the_tokens_of_the_model_alone():
    short, long = with_a_tool(length=1), with_a_tool(length=3)
    micro_batch = trained(short, long, advantage=returns_whitened)
    values = np.array([0.0] * 2 + [1.0] * 6)
    np.testing.assert_allclose(micro_batch.advantages_R, (values - values.mean()) / values.std(ddof=1), rtol=1e-5)


def values_of(*groups: ScoredGroup) -> tuple[tuple[np.ndarray, ...], ...]:
    """Return what a critic expects: for each sample its number, and a tenth more at each token."""
    return tuple(
        tuple(row + np.arange(sample.num_trained) / 10 for row, sample in enumerate(group.group.samples_G))
        for group in groups
    )


def test_a_critic_is_fitted_to_its_returns_and_clipped_around_its_old_values():
    step = GeneralizedAdvantage(gamma=1.0, lambda_=0.0)
    groups = (scored("0:0", (1.0, 0.0)), scored("0:1", (2.0, 0.0)))
    made = batches(
        advantage=step, values=lambda given: values_of(*given), returns=step.returns, keep_zero_advantage=True
    )
    (batch,) = made(groups)
    (micro_batch,) = batch.micro_batches_by_rank[0]
    fitted = micro_batch.value_targets
    np.testing.assert_allclose(fitted.old_values, [0.0, 0.1, 1.0, 1.1] * 2, rtol=1e-6)
    np.testing.assert_allclose(fitted.returns, [0.1, 1.0, 1.1, 0.0, 0.1, 2.0, 1.1, 0.0], rtol=1e-6)
    errors = np.array([0.1, 0.9, 0.1, -1.1, 0.1, 1.9, 0.1, -1.1])
    whitened = (errors - errors.mean()) / errors.std(ddof=1)
    np.testing.assert_allclose(micro_batch.advantages_R, whitened, rtol=1e-5)


@pytest.mark.parametrize("changes", [{"values": lambda given: values_of(*given)}, {"returns": lambda outcome: 1 / 0}])
def test_without_values_or_without_returns_no_critic_is_fitted(changes):
    (step,) = batches(**changes)((scored("0:0", (1.0, 0.0)),))
    assert step.micro_batches_by_rank[0][0].value_targets is None


def test_responses_that_no_engine_made_have_log_probabilities_of_zero():
    prompt = Prompt("0:0", "q", "q", (1, 2, 3), "", {})
    given = Sample((5, 6), (), "", 0, "stop", "")
    (step,) = batches(advantage=ones)((ScoredGroup(Group(prompt, (given,)), ()),))
    assert step.micro_batches_by_rank[0][0].logprobs_R.tolist() == [0.0, 0.0]


def test_a_step_counts_its_samples_and_the_tokens_that_go_through_the_learner():
    (step,) = batches()((scored("0:0", (1.0, 0.0)), scored("0:1", (1.0, 1.0))))
    assert (step.samples, step.tokens) == (4, 2 * (3 + 2))


@pytest.mark.parametrize(
    "changes",
    [
        {"advantage": lambda outcomes: [(1.0, 1.0)]},
        {"advantage": lambda outcomes: [(1.0,), (1.0, 1.0)]},
        {"weights": lambda lengths: (1.0,)},
        {"values": lambda given: values_of(*given), "returns": lambda outcome: [np.ones(2)]},
        {"values": lambda given: values_of(*given), "returns": lambda outcome: [np.ones(2)] * 3},
    ],
    ids=["groups", "samples", "weights", "fewer returns", "more returns"],
)
def test_results_that_are_not_one_for_each_sample_are_refused(changes):
    with pytest.raises(ValueError, match=r"shorter|longer"):
        batches(**changes)((scored("0:0", (1.0, 0.0)), scored("0:1", (1.0, 0.0))))


def test_the_samples_of_a_step_are_those_that_follow_each_other():
    groups = tuple(scored(f"0:{row}", (1.0, 0.0), length=row + 1) for row in range(3))
    steps = batches(global_batch_size=4, keep_zero_advantage=True)(groups)
    assert [(step.samples, step.tokens) for step in steps] == [(3, 2 * (3 + 1) + (3 + 2)), (3, (3 + 2) + 2 * (3 + 3))]


def test_ranks_and_micro_batches_are_as_many_as_the_settings_say():
    groups = tuple(scored(f"0:{row}", (1.0, 0.0)) for row in range(4))
    (step,) = batches(global_batch_size=8, packing=Packing(2, 10))(groups)
    assert [[len(each.tokens_T) for each in share] for share in step.micro_batches_by_rank] == [[10, 10]] * 2


def test_an_algorithm_is_given_rewards_lengths_penalties_and_values_of_each_group():
    taken = Penalised(groups=((np.zeros(2),) * 2, (np.ones(3),) * 2), kl=0.0)
    given, asked = [], []

    def recording(outcomes):
        given.extend(outcomes)
        return [(1.0, 1.0)] * len(outcomes)

    def penalties(groups):
        asked.append(groups)
        return taken

    groups = (scored("0:0", (1.0, 0.0), 2), scored("0:1", (0.5, 2.0), 3))
    batches(advantage=recording, penalties=penalties, values=lambda given: values_of(*given))(groups)
    assert asked == [groups]
    assert [(each.rewards_G, each.lengths_G) for each in given] == [((1.0, 0.0), (2, 2)), ((0.5, 2.0), (3, 3))]
    for outcome, penalties_G, values_G in zip(given, taken.groups, values_of(*groups), strict=True):
        np.testing.assert_array_equal(outcome.penalties_G, penalties_G)
        np.testing.assert_array_equal(outcome.values_G, values_G)


def told(experts: list[list[int]]) -> npt.NDArray[np.int16]:
    """Return the experts of each token as an engine's answer has them."""
    return np.asarray(experts, np.int16).reshape(-1)


def with_experts(*given: npt.NDArray[np.int16] | None) -> ScoredGroup:
    """Return a group of as many samples, each of two tokens after a prompt of three."""
    plain = scored("0:0", tuple(float(number) for number in range(len(given))))
    samples = tuple(replace(plain.group.samples_G[0], experts=each) for each in given)
    return replace(plain, group=replace(plain.group, samples_G=samples))


def test_experts_of_a_rollout_stand_beside_their_tokens():
    known = [[0, 3], [1, 2], [2, 1], [3, 0]]
    (step,) = batches(choices=2)((with_experts(told(known), told([*known, [7, 7], [8, 8]])),))
    (micro_batch,) = step.micro_batches_by_rank[0]
    assert micro_batch.experts_TC is not None
    assert micro_batch.experts_TC.tolist() == [*known, [UNKNOWN] * 2, *known, [7, 7]], "a cut response loses its tail"


def test_without_the_field_nobody_looks_at_experts():
    (step,) = batches()((with_experts(told([[0, 3]]), None),))
    assert step.micro_batches_by_rank[0][0].experts_TC is None


@pytest.mark.parametrize(("given", "number"), [(None, 0), (told([[1, 2, 3]]), 3)])
def test_an_engine_that_does_not_say_all_experts_is_named(given: npt.NDArray[np.int16] | None, number: int):
    with pytest.raises(ValueError, match=f"engine engine-0 returned {number} experts .* multiple of the 2"):
        batches(choices=2)((with_experts(given, given),))


@given(st.integers(1, 50), st.integers(1, 20))
def test_whole_steps_are_those_that_follow_each_other(size, steps):
    assert shares(size * steps, size) == tuple((start, start + size) for start in range(0, size * steps, size))


@given(st.integers(0, 2000), st.integers(1, 300))
def test_where_samples_are_missing_every_step_has_nearly_as_many(samples, size):
    parts = shares(samples, size)
    sizes = [end - start for start, end in parts]
    assert [number for start, end in parts for number in range(start, end)] == list(range(samples))
    assert len(parts) == -(-samples // size)
    assert max(sizes, default=0) <= size and max(sizes, default=0) - min(sizes, default=0) <= 1
