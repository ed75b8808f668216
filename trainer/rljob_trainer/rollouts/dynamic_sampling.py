"""Dynamic sampling (DAPO, https://arxiv.org/abs/2503.14476): rollouts of groups that teach something: their samples do
not all agree, and one of them at least is trained on.

    round 1: promptsPerStep x overSample prompts ─► samples ─► rewards ─► such groups are kept
    round 2: missing groups x overSample prompts ─► ...          at most maxRounds; then others fill up

Every prompt that is asked is journaled as issued in its round and as consumed with the step, whether its group was kept
or dropped: the stream continues behind it, and no prompt is skipped or asked twice, also after a resume.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rljob_api.sections import DynamicSampling
from rljob_trainer.metrics import Accuracy, LearnerMetrics, Publication
from rljob_trainer.parts import Rewards, Source
from rljob_trainer.reporting.report import Report
from rljob_trainer.samples import Group, ScoredGroup

log = logging.getLogger(__name__)


@dataclass
class DynamicRollouts:
    """Rollouts and rewards at once: which groups are kept depends on their rewards."""

    source: Source
    rewards: Rewards
    num_groups: int
    """groups of one step"""
    settings: DynamicSampling
    dropped: tuple[ScoredGroup, ...] = ()
    """groups of the last step that are not trained on"""
    _scored: dict[str, ScoredGroup] = field(default_factory=dict)

    def collect(self, step: int) -> tuple[Group, ...]:
        """Return the groups of `step`, in the order in which their prompts were issued."""
        return self.collect_round(step, self.num_groups)

    def collect_round(self, step: int, num_prompts: int) -> tuple[Group, ...]:
        """Return the wanted number of groups, chosen from at most the rounds that the settings allow."""
        made: list[ScoredGroup] = []
        for number in range(1, self.settings.max_rounds + 1):
            missing = num_prompts - num_useful(made)
            if missing <= 0:
                break
            groups = self.source.collect_round(step, self.settings.prompts(missing))
            made += self.rewards.score(groups)
            log.info("action=sample round=%d asked=%d useful=%d", number, len(made), num_useful(made))
        kept, self.dropped = selected(made, num_prompts)
        self._scored = {scored.group.prompt.uid: scored for scored in kept}
        return tuple(scored.group for scored in kept)

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the groups of the last step with the rewards that they were chosen by."""
        return tuple(self._scored[group.prompt.uid] for group in groups)

    def consumed(self, step: int) -> None:
        """Journal that the learner has taken its step, and that dropped prompts do not come again."""
        self.source.consumed(step)


@dataclass(frozen=True, slots=True)
class ReportWithDropped:
    """A report that also gets the groups that were dropped."""

    report: Report
    rollouts: DynamicRollouts
    shape: Callable[[ScoredGroup], ScoredGroup]
    """what happened to the rewards of the groups that were kept"""

    def step(
        self, step: int, groups: Sequence[ScoredGroup], training: LearnerMetrics, publication: Publication
    ) -> None:
        """Report a step."""
        self.report.step(step, groups, training, publication, tuple(map(self.shape, self.rollouts.dropped)))

    def evaluation(self, step: int, accuracy: Accuracy) -> None:
        """Report an evaluation."""
        self.report.evaluation(step, accuracy)


def num_useful(groups: Sequence[ScoredGroup]) -> int:
    """Return how many of the groups teach something."""
    return sum(group.has_signal for group in groups)


def selected(made: Sequence[ScoredGroup], wanted: int) -> tuple[tuple[ScoredGroup, ...], tuple[ScoredGroup, ...]]:
    """Return `wanted` groups and the rest, each in order: the first that teach something, then others."""
    first = sorted(range(len(made)), key=lambda index: not made[index].has_signal)[:wanted]
    kept = set(first)
    return (
        tuple(scored for index, scored in enumerate(made) if index in kept),
        tuple(scored for index, scored in enumerate(made) if index not in kept),
    )
