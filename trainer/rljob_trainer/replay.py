"""Rollouts to disk, and from disk instead of from engines. Chosen in `build.py` for `spec.debug`.

Both stand where rollouts and rewards stand: between them they see the step, and the scored groups of that step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_trainer.data.journal import Journal
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.dumps import Dump, Made
from rljob_trainer.samples import Group, ScoredGroup


class Rollouts(Protocol):
    """Whatever makes samples, see `parts.Rollouts`."""

    def take(self, step: int) -> tuple[Group, ...]: ...

    def consumed(self, step: int) -> None: ...


class Rewards(Protocol):
    """Whatever scores them, see `parts.Rewards`."""

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]: ...


@dataclass
class Dumping:
    """Rollouts and rewards that also write each step to disk, before anything is trained on it."""

    rollouts: Rollouts
    rewards: Rewards
    dump: Dump
    made: Made
    _step: int = -1

    def take(self, step: int) -> tuple[Group, ...]:
        """Return the groups of `step`."""
        self._step = step
        return self.rollouts.take(step)

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the groups with their rewards, which are on the disk by then. Raises DumpError."""
        scored = self.rewards.score(groups)
        self.dump.write(self._step, scored, self.made)
        return scored

    def consumed(self, step: int) -> None:
        """Note that the learner has trained on the groups of `step`."""
        self.rollouts.consumed(step)


@dataclass
class Replay:
    """Rollouts and rewards as they were. The journal of prompts becomes that of the run that made them."""

    dump: Dump
    made: Made
    stream: PromptStream
    journal: Journal
    prompts_per_step: int
    _scored: tuple[ScoredGroup, ...] = ()

    def take(self, step: int) -> tuple[Group, ...]:
        """Return the groups of `step`; raise DumpError when they are damaged, or are answers to other prompts."""
        prompts = self.stream.take(self.prompts_per_step)
        self._scored = self.dump.read(step, prompts, self.made)
        self.journal.issued(step, [prompt.uid for prompt in prompts])
        return tuple(scored.group for scored in self._scored)

    def score(self, groups: Sequence[Group]) -> tuple[ScoredGroup, ...]:
        """Return the same groups with the rewards that they got."""
        return self._scored

    def consumed(self, step: int) -> None:
        """Journal that the learner has taken its step on the prompts of `step`."""
        self.journal.consumed(step)
