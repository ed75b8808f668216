"""Rollouts and rewards without what was lost on the way: samples that were not made or judged, and groups too small.

    rollouts ─► groups, some with fewer samples ─► rewards ─► judged samples ─► groups of two and more ─► training

Stands around dumps, which hold all prompts of a step, and below dynamic sampling, which asks further prompts for groups
that are missing. Prompts of lost groups are issued and consumed as all others: none comes again.

A few losses cost nothing but these samples. Too many of them, over some steps, end the attempt; and if nothing at all
has come of the first step of a run, its input is bad.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_trainer.parts import Rewards, Source
from rljob_trainer.reporting.losses import AwayError, Cause, Losses
from rljob_trainer.samples import Group, ScoredGroup

log = logging.getLogger(__name__)

WINDOW = 10
"""steps over which losses are counted"""
SMALLEST = 2
"""samples of a group: one alone has nothing that it could be compared with"""


@dataclass(frozen=True, slots=True)
class Counted:
    """The samples of one step."""

    step: int
    asked: int = 0
    lost: int = 0


@dataclass
class LeavingOut:
    """Rollouts and rewards at once: what is lost is known when a group is judged."""

    source: Source
    rewards: Rewards
    prompts_per_step: int
    samples_per_prompt: int
    share: float
    """largest share of the samples of a window that may be lost"""
    losses: Losses
    smallest: int = SMALLEST
    """samples that a group must have left"""
    _steps: tuple[Counted, ...] = field(default=(), init=False)
    """the newest is that of the present step"""

    def collect(self, step: int) -> tuple[Group, ...]:
        """Return the groups of `step`."""
        return self.collect_round(step, self.prompts_per_step)

    def collect_round(self, step: int, num_prompts: int) -> tuple[Group, ...]:
        """Return the groups of the next prompts; some may lack samples."""
        if not self._steps or self._steps[-1].step != step:
            self._steps = (*self._steps, Counted(step))[-WINDOW:]
        return self.source.collect_round(step, num_prompts)

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the groups that can be trained on, with their rewards.

        Raises AwayError when too many samples were lost; at the first step of a run, what all of them were lost to.
        """
        scored = self.rewards.score(groups)
        kept = tuple(each for each in scored if len(each.group.samples_G) >= self.smallest)
        alone = sum(len(each.group.samples_G) for each in scored) - sum(len(each.group.samples_G) for each in kept)
        if alone:
            self.losses.note(Cause.GROUP, alone)
        asked = len(groups) * self.samples_per_prompt
        self._count(asked, asked - sum(len(each.group.samples_G) for each in kept))
        if len(kept) < len(scored):
            log.warning(
                "action=leave_out step=%d groups=%d of=%d", self._now.step, len(scored) - len(kept), len(scored)
            )
        return kept

    def consumed(self, step: int) -> None:
        """Journal that the learner has taken its step; prompts of lost groups do not come again."""
        self.source.consumed(step)

    @property
    def _now(self) -> Counted:
        return self._steps[-1]

    def _count(self, asked: int, lost: int) -> None:
        now = self._now
        self._steps = (*self._steps[:-1], Counted(now.step, now.asked + asked, now.lost + lost))
        if now.step == 0 and self._now.asked and self._now.lost == self._now.asked:
            self._end_first_step()
        if too_many(self._steps, self.share, self.prompts_per_step * self.samples_per_prompt):
            total = sum(each.lost for each in self._steps)
            raise AwayError(
                f"{total} samples of the last {len(self._steps)} steps were lost, more than recovery.lostSamples "
                f"{self.share:g} allows; the last one: {self.losses.last}"
            )

    def _end_first_step(self) -> None:
        """Raise what all samples of the first step were lost to, as an error of its kind."""
        last = self.losses.last
        if last is not None:
            kind = type(last)
            raise kind(f"not one of {self._now.asked} samples of the first step can be trained on; the last: {last}")


def too_many(steps: Sequence[Counted], share: float, samples_per_step: int) -> bool:
    """Whether more samples were lost than a share of a whole window: a window that has only begun is no stricter."""
    asked = max(sum(each.asked for each in steps), WINDOW * samples_per_step)
    return sum(each.lost for each in steps) > share * asked
