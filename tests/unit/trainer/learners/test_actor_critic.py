"""Policy and critic are trained on the same rollout; at first the critic alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from rljob_trainer.algorithms.ppo import GeneralizedAdvantage
from rljob_trainer.batches.batches import Batches, StepBatch
from rljob_trainer.batches.loss_weights import by_token
from rljob_trainer.batches.packing import Packing
from rljob_trainer.batches.penalties import no_penalties
from rljob_trainer.learners.actor_critic import ActorCritic, explained_variance
from rljob_trainer.learners.group import summary
from rljob_trainer.metrics import LearnerMetrics, OptimizerStep
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup

GAE = GeneralizedAdvantage(1.0, 1.0)
Expected = float | tuple[float, ...]


@dataclass
class Learner:
    """Notes which of the two was trained; each step of the critic skips one."""

    trained: list[str] = field(default_factory=list)

    def train(self, batches: Sequence[StepBatch]) -> LearnerMetrics:
        self.trained.append("policy")
        return summary([], kl_in_rewards=None)

    def train_critic(self, batches: Sequence[StepBatch]) -> list[OptimizerStep]:
        self.trained.append("critic")
        return [
            OptimizerStep(skipped=1, value_loss=loss, value_clip_fraction=0.5, critic_grad_norm=loss) for loss in (2, 4)
        ]


def scored(*rewards: float) -> ScoredGroup:
    prompt = Prompt("0:0", "q", "q", (1, 2, 3), "", {})
    samples = tuple(Sample((5, 6), (-0.5, -0.5), "", 0, "stop", "engine-0") for _ in rewards)
    return ScoredGroup(Group(prompt, samples), rewards)


def steps(groups: tuple[ScoredGroup, ...], value: Expected = 0.25, size: int = 2) -> tuple[StepBatch, ...]:
    """Return the steps of a rollout of which the critic expects `value` everywhere, or so much of each sample."""

    def values(groups):
        each = iter(np.broadcast_to(value, sum(len(group.rewards_G) for group in groups)).tolist())
        return tuple(tuple(np.full(2, next(each)) for _ in group.rewards_G) for group in groups)

    make = Batches(
        advantage=GAE,
        penalties=no_penalties,
        weights=by_token,
        keep_zero_advantage=True,
        global_batch_size=size,
        packing=Packing(1, 1000),
        values=values,
        returns=GAE.returns,
    )
    return make(groups)


def test_every_token_has_the_critics_value_and_its_return() -> None:
    (step,) = steps((scored(1.0, 0.0),))
    (micro_batch,) = step.micro_batches_by_rank[0]
    assert micro_batch.value_targets is not None
    np.testing.assert_allclose(micro_batch.value_targets.old_values, [0.25] * 4)
    np.testing.assert_allclose(micro_batch.value_targets.returns, [1.0, 1.0, 0.0, 0.0])
    np.testing.assert_allclose(micro_batch.advantages_R, np.array([1, 1, -1, -1]) * np.sqrt(0.75), rtol=1e-6)


def test_every_group_has_its_own_values() -> None:
    (step,) = steps((scored(1.0, 0.0), scored(0.5, 0.5)), (0.1, 0.2, 0.3, 0.4), size=4)
    (micro_batch,) = step.micro_batches_by_rank[0]
    assert micro_batch.value_targets is not None
    np.testing.assert_allclose(micro_batch.value_targets.old_values[::2], [0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(micro_batch.value_targets.returns[::2], [1.0, 0.0, 0.5, 0.5])


def test_a_sample_without_advantage_still_teaches_the_critic() -> None:
    (step,) = steps((scored(1.0, 1.0),))
    (micro_batch,) = step.micro_batches_by_rank[0]
    assert micro_batch.advantages_R.tolist() == [0.0] * 4
    assert micro_batch.value_targets is not None and micro_batch.value_targets.returns.tolist() == [1.0] * 4


def test_the_critic_is_trained_alone_at_first_and_then_both() -> None:
    learner = Learner()
    both = ActorCritic(learner, critic_only=2)
    metrics = [both.train(steps((scored(1.0, 0.0),))) for _ in range(3)]
    assert learner.trained == ["critic", "critic", "critic", "policy"]
    assert [each.loss is None for each in metrics] == [True, True, False]
    assert [each.train_tokens > 0 for each in metrics[:2]] == [True, True]


def test_what_the_critic_says_is_reported_with_what_the_policy_says() -> None:
    metrics = ActorCritic(Learner(), critic_only=0).train(steps((scored(1.0, 0.0),)))
    assert (metrics.value_loss, metrics.critic_grad_norm, metrics.value_clip_fraction) == (3.0, 4.0, 0.5)
    assert metrics.skipped == 2


@pytest.mark.parametrize(
    ("value", "explained"), [((1.0, 0.0), 1.0), (0.25, 0.0), ((0.0, 1.0), -3.0), ((0.75, 0.25), 0.75)]
)
def test_the_explained_variance_says_how_much_the_critic_knew(value: Expected, explained: float) -> None:
    assert explained_variance(steps((scored(1.0, 0.0),), value)) == pytest.approx(explained)
    assert explained_variance(steps((scored(1.0, 0.0),), value, size=1)) == pytest.approx(explained)


def test_where_all_returns_are_alike_nothing_can_be_explained() -> None:
    assert explained_variance(steps((scored(1.0, 1.0),))) is None
    assert explained_variance(()) is None
