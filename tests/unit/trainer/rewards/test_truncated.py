"""Truncated samples: out of the loss, in the statistics of their groups."""

from dataclasses import replace

import numpy as np
import pytest

from rljob_api import sections
from rljob_trainer.algorithms.factory import algorithm
from rljob_trainer.batches.batches import Batches, StepBatch
from rljob_trainer.batches.loss_weights import by_sample, by_token
from rljob_trainer.batches.packing import Packing
from rljob_trainer.batches.penalties import Penalised, no_penalties
from rljob_trainer.rewards.truncated import masked
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup, Segment

PROMPT = Prompt("0:0", "q", "q", (1, 2, 3), "", {})
WHOLE = Sample((5, 6), (-0.5, -0.5), "", 0, "stop", "engine-0")
CUT = replace(WHOLE, tokens_T=(7,) * 4, logprobs_T=(-0.5,) * 4, finish_reason="length")
TOOLS = (Segment(2, "", True), Segment(1, "", False), Segment(1, "", True))


def scored(*samples: Sample, rewards: tuple[float, ...] | None = None) -> ScoredGroup:
    return masked(ScoredGroup(Group(PROMPT, samples), rewards or tuple(map(float, range(len(samples))))))


def steps(*groups: ScoredGroup, name: str = "grpo", size: int = 100, **changes) -> tuple[StepBatch, ...]:
    critic = sections.Critic(learning_rate=1e-5) if name == "ppo" else None
    chosen = algorithm(sections.Algorithm(name=name, critic=critic))
    settings = {
        "advantage": chosen.advantage,
        "penalties": no_penalties,
        "weights": by_token,
        "keep_zero_advantage": False,
        "global_batch_size": size,
        "packing": Packing(1, 1000),
        "returns": chosen.returns,
    }
    return Batches(**settings | changes)(groups)


@pytest.mark.parametrize(
    ("sample", "dropped"),
    [
        (WHOLE, False),
        (CUT, True),
        (replace(CUT, segments=TOOLS), True),
        (replace(WHOLE, tokens_T=(7,) * 4, logprobs_T=(-0.5,) * 4, segments=TOOLS), False),
        (replace(WHOLE, dropped=True), True),
    ],
    ids=["whole", "cut", "tools cut off", "tools", "dropped before"],
)
def test_what_was_cut_off_is_dropped(sample: Sample, dropped: bool) -> None:
    (found,) = scored(sample).group.samples_G
    assert found == replace(sample, dropped=dropped)


def test_rewards_of_masked_samples_count_in_the_mean_and_deviation_of_their_group() -> None:
    (step,) = steps(scored(WHOLE, CUT, WHOLE, rewards=(1.0, 0.0, 0.2)))
    (micro_batch,) = step.micro_batches_by_rank[0]
    assert micro_batch.targets_R.tolist() == [5, 6] * 2
    np.testing.assert_allclose(
        micro_batch.advantages_R, np.repeat([0.6, -0.2], 2) / np.std([1.0, 0.0, 0.2], ddof=1), rtol=1e-5
    )
    np.testing.assert_allclose(micro_batch.weights_R, 1 / 4)


@pytest.mark.parametrize("weights", [by_token, by_sample])
def test_a_group_that_is_masked_as_a_whole_trains_nothing_and_changes_no_other(weights) -> None:
    (alone,) = steps(scored(WHOLE, WHOLE), weights=weights)
    (beside,) = steps(scored(WHOLE, WHOLE), scored(CUT, CUT), weights=weights)
    (nothing,) = steps(scored(CUT, CUT), weights=weights)
    assert scored(CUT, CUT).is_masked and not scored(CUT, CUT).has_signal
    assert beside.micro_batches_by_rank[0][0].weights_R.tolist() == alone.micro_batches_by_rank[0][0].weights_R.tolist()
    assert (beside.tokens, beside.samples) == (alone.tokens, alone.samples + 2)
    assert (nothing.tokens, nothing.micro_batches_by_rank) == (0, ((),))


def test_each_optimizer_step_of_a_rollout_divides_by_its_own_tokens() -> None:
    first, second, third = steps(scored(WHOLE, CUT), scored(WHOLE, WHOLE), scored(CUT, CUT), size=2)
    assert [each.micro_batches_by_rank[0][0].weights_R.tolist() for each in (first, second)] == [[0.5] * 2, [0.25] * 4]
    assert third.micro_batches_by_rank == ((),)


def test_masked_tokens_have_no_part_in_whitened_advantages() -> None:
    (step,) = steps(scored(WHOLE, CUT, WHOLE, rewards=(1.0, 9.0, 0.0)), name="reinforcePlusPlus")
    returns = np.array([1.0, 1.0, 0.0, 0.0])
    found = step.micro_batches_by_rank[0][0].advantages_R
    np.testing.assert_allclose(found, (returns - returns.mean()) / returns.std(ddof=1), rtol=1e-5)


def test_a_critic_is_not_fitted_to_masked_tokens() -> None:
    values = ((np.array([0.1, 0.2]), np.empty(0), np.array([0.3, 0.4])),)
    group = scored(WHOLE, CUT, WHOLE, rewards=(1.0, 9.0, 0.0))
    (step,) = steps(group, name="ppo", values=lambda given: values, keep_zero_advantage=True)
    (micro_batch,) = step.micro_batches_by_rank[0]
    assert micro_batch.value_targets is not None
    np.testing.assert_allclose(micro_batch.value_targets.old_values, [0.1, 0.2, 0.3, 0.4], rtol=1e-6)
    np.testing.assert_allclose(micro_batch.value_targets.returns, [1.0, 1.0, 0.0, 0.0], atol=1e-6)


def test_a_masked_sample_has_no_penalties_to_take_from_its_reward() -> None:
    taken = Penalised(groups=((np.array([0.5, 0.5]), np.empty(0)),), kl=0.5)
    (step,) = steps(scored(WHOLE, CUT, rewards=(2.0, 0.0)), name="rloo", penalties=lambda groups: taken)
    np.testing.assert_allclose(step.micro_batches_by_rank[0][0].advantages_R, 1.0)  # 2 - 1, and 0
