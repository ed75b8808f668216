"""Rollouts to disk, and from disk instead of from engines. Chosen in `assembly` for `spec.debug`.

Both stand where rollouts and rewards stand: between them they see the step, and the scored groups of that step. They
stand below dynamic sampling, which asks for groups in rounds: a replay drops the same groups as the run that made them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_trainer.data.prompt_scheduler import PromptScheduler
from rljob_trainer.parts import Rewards, Source
from rljob_trainer.rundir.rollout_files import Dump, Made, Recorded
from rljob_trainer.samples import Group, ScoredGroup


@dataclass
class Dumping:
    """Rollouts and rewards that also write each step to disk, before anything is trained on it."""

    source: Source
    rewards: Rewards
    dump: Dump
    made: Made
    prompts_per_step: int
    _step: int = -1
    _rounds: list[tuple[ScoredGroup, ...]] = field(default_factory=list)

    def collect(self, step: int) -> tuple[Group, ...]:
        """Return the groups of `step`."""
        return self.collect_round(step, self.prompts_per_step)

    def collect_round(self, step: int, num_prompts: int) -> tuple[Group, ...]:
        """Return the groups of the next prompts, for `step`."""
        if step != self._step:
            self._step, self._rounds = step, []
        return self.source.collect_round(step, num_prompts)

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the groups with their rewards, which are on the disk by then. Raises DumpError."""
        scored = self.rewards.score(groups)
        self._rounds.append(scored)
        self.dump.write(self._step, self._rounds, self.made)
        return scored

    def consumed(self, step: int) -> None:
        """Note that the learner has trained on the groups of `step`."""
        self.source.consumed(step)


@dataclass
class Replay:
    """Rollouts and rewards as they were. The journal of prompts becomes that of the run that made them."""

    dump: Dump
    made: Made
    scheduler: PromptScheduler
    prompts_per_step: int
    _step: int = -1
    _round: int = -1
    _recorded: Recorded | None = None
    _scored: tuple[ScoredGroup, ...] = ()

    def collect(self, step: int) -> tuple[Group, ...]:
        """Return the groups of `step`; raise DumpError when they are damaged, or are answers to other prompts."""
        return self.collect_round(step, self.prompts_per_step)

    def collect_round(self, step: int, num_prompts: int) -> tuple[Group, ...]:
        """Return the groups of the next round of `step`. Raises DumpError."""
        if step != self._step or self._recorded is None:
            self._step, self._round, self._recorded = step, -1, self.dump.read(step, self.made)
        self._round += 1
        self._scored = self._recorded.groups(self._round, self.scheduler.issue(step, num_prompts))
        return tuple(scored.group for scored in self._scored)

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the same groups with the rewards that they got."""
        return self._scored

    def consumed(self, step: int) -> None:
        """Journal that the learner has taken its step on the prompts of `step`."""
        self.scheduler.journal.consumed(step)
