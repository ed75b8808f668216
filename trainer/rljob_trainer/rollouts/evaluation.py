"""Accuracy on questions that are not trained on, sampled and greedy, through the same engines, prompts and rewards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rljob_api.sections import EvaluationSet, Sampling
from rljob_trainer.metrics import Accuracy
from rljob_trainer.parts import Rewards
from rljob_trainer.processes.background import Background
from rljob_trainer.rollouts.sampler import Sampler
from rljob_trainer.samples import Prompt, ScoredGroup


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
            lost=self._lost(sampled, self.samples_per_prompt) + self._lost(greedy, 1),
        )

    def _lost(self, groups: Sequence[ScoredGroup], num_samples: int) -> int:
        """Return how many samples of the groups were not made, or not judged."""
        return sum(max(0, num_samples - len(group.rewards_G)) for group in groups)

    def _scored(self, num_samples: int, greedy: bool) -> tuple[ScoredGroup, ...]:
        work = self.sampler.groups(self.prompts, self.sampling, num_samples, greedy)
        return self.rewards.score(self.background.run(work, timeout_s=None))


@dataclass(frozen=True, slots=True)
class WithSets:
    """Measures on the held-out questions and then on each further set."""

    held_out: HeldOut
    sets: Mapping[str, HeldOut]

    def measure(self) -> Accuracy:
        """Ask every question of every set."""
        accuracy = self.held_out.measure()
        sets = {name: each.measure() for name, each in self.sets.items()}
        failures = accuracy.failures + sum(each.failures for each in sets.values())
        lost = accuracy.lost + sum(each.lost for each in sets.values())
        return replace(accuracy, failures=failures, lost=lost, sets=sets)


def with_sets(held_out: HeldOut, sets: Sequence[EvaluationSet], prompts: Mapping[str, Sequence[Prompt]]) -> WithSets:
    """Return an evaluation of the held-out questions and of further sets alike; `prompts` by the names of sets."""
    return WithSets(
        held_out,
        {
            each.name: replace(
                held_out,
                prompts=prompts[each.name],
                samples_per_prompt=each.samples_per_prompt or held_out.samples_per_prompt,
            )
            for each in sets
        },
    )


class NoHeldOut:
    """The manifest names no held-out questions."""

    def measure(self) -> Accuracy:
        """Measure nothing."""
        return Accuracy(sampled=None, greedy=None, questions=0)


def mean_reward(groups: Sequence[ScoredGroup]) -> float | None:
    """Return the mean over all samples that were judged; None: none was."""
    rewards = [reward for group in groups for reward in group.rewards_G]
    return sum(rewards) / len(rewards) if rewards else None
