"""The parts that the loop works with, as small protocols. `assembly` chooses the implementations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rljob_trainer.batches.batches import StepBatch
from rljob_trainer.batches.token_values import SharedGpus
from rljob_trainer.cadence import Cadence
from rljob_trainer.metrics import Accuracy, LearnerMetrics, Publication
from rljob_trainer.reporting.phases import Phases
from rljob_trainer.samples import Group, ScoredGroup


class Rollouts(Protocol):
    def collect(self, step: int) -> tuple[Group, ...]:
        """Return the groups to train on in `step`."""

    def consumed(self, step: int) -> None:
        """Note that the learner has trained on them."""


class Rewards(Protocol):
    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the groups with a reward for each sample."""


class EarlyRewards(Rewards, Protocol):
    """Rewards that can begin before all groups of a step are there."""

    def begin(self, group: Group) -> None:
        """Begin to judge a group that will be scored, and return at once. May be called in any thread."""


class Batches(Protocol):
    def __call__(self, groups: Sequence[ScoredGroup]) -> tuple[StepBatch, ...]:
        """Return the optimizer steps to take on the groups."""


class Learner(Protocol):
    def train(self, batches: Sequence[StepBatch]) -> LearnerMetrics:
        """Take the optimizer steps; the learner's weights change."""


class Weights(Protocol):
    def publish(self, version: int) -> Publication:
        """Bring the learner's weights to every engine, verified; engines that fail are out of service.

        Return what the engines hold: an earlier version where these weights are not due yet.
        """


class Evaluation(Protocol):
    def measure(self) -> Accuracy:
        """Return the accuracy on the held-out questions."""


class Checkpoints(Protocol):
    def begin(self, step: int) -> None:
        """Copy the state after `step` steps; it is written beside the steps that follow."""

    def check(self) -> None:
        """Raise what the writing of a checkpoint has raised meanwhile."""

    def settle(self) -> None:
        """Return when nothing is written any more, also after an error."""

    def save(self, step: int) -> Path:
        """Save the state after `step` steps; it is complete when this returns."""


class Report(Protocol):
    def step(
        self, step: int, groups: Sequence[ScoredGroup], training: LearnerMetrics, publication: Publication
    ) -> None:
        """Report a step."""

    def evaluation(self, step: int, accuracy: Accuracy) -> None:
        """Report an evaluation."""


class Orders(Protocol):
    @property
    def requested(self) -> bool:
        """Whether the loop should save and end after this step."""


class Source(Rollouts, Protocol):
    """Rollouts that can also be asked for less than a step, as dynamic sampling does."""

    def collect_round(self, step: int, num_prompts: int) -> tuple[Group, ...]:
        """Return the groups of the next prompts, which are journaled as issued for `step`."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The parts that engines take part in, or what stands for them."""

    rollouts: Source
    rewards: Rewards
    gpu_sharing: SharedGpus
    weights: Weights
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Trained:
    """The parts that the learner takes part in, or what stands for them."""

    batches: Batches
    learner: Learner
    checkpoints: Checkpoints


@dataclass(frozen=True, slots=True)
class Parts:
    """What one run of the loop needs."""

    rollouts: Rollouts
    rewards: Rewards
    batches: Batches
    learner: Learner
    gpu_sharing: SharedGpus
    weights: Weights
    evaluation: Evaluation
    checkpoints: Checkpoints
    report: Report
    phases: Phases
    cadence: Cadence
    orders: Orders
