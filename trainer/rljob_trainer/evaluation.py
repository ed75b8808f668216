"""Accuracy on the held-out questions, sampled and greedy, through the same engines, prompts and rewards as training."""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.sections import Sampling
from rljob_trainer.background import Background
from rljob_trainer.rewards.choose import Rewards
from rljob_trainer.rollouts import Sampler
from rljob_trainer.samples import Prompt, ScoredGroup


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Mean reward on the held-out questions; None where it was not measured."""

    sampled: float | None
    greedy: float | None
    questions: int
    failures: int = 0
    """judgements that failed and got the score that the manifest has for them"""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Measures on fixed questions."""

    prompts: Sequence[Prompt]
    sampler: Sampler
    sampling: Sampling
    rewards: Rewards
    samples_per_prompt: int
    greedy: bool
    background: Background

    def measure(self) -> Accuracy:
        """Ask every held-out question."""
        sampled = self._scored(self.samples_per_prompt, greedy=False)
        greedy = self._scored(1, greedy=True) if self.greedy else ()
        return Accuracy(
            sampled=mean_reward(sampled),
            greedy=mean_reward(greedy) if greedy else None,
            questions=len(self.prompts),
            failures=sum(group.failures for group in (*sampled, *greedy)),
        )

    def _scored(self, num_samples: int, greedy: bool) -> tuple[ScoredGroup, ...]:
        work = self.sampler.groups(self.prompts, self.sampling, num_samples, greedy)
        return self.rewards.score(self.background.run(work, timeout_s=None))


class NoHeldOut:
    """The manifest names no held-out questions."""

    def measure(self) -> Accuracy:
        """Measure nothing."""
        return Accuracy(sampled=None, greedy=None, questions=0)


def mean_reward(groups: Sequence[ScoredGroup]) -> float:
    """Return the mean over all samples of all groups."""
    rewards = [reward for group in groups for reward in group.rewards_G]
    return sum(rewards) / len(rewards)
