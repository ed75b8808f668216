"""Rollouts ahead: while the learner trains a step, engines make the samples of the next ones.

    take(k): ask for all steps that may begin now (`data/issues.py`) ─► wait for those of step k

The bound: step k, counted from 0, is trained on no token of a weights version older than k - S. It holds because its
prompts are first asked when the engines hold at least that version, and is checked of every sample nevertheless.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from rljob_api.sections import Sampling
from rljob_trainer.background import Background
from rljob_trainer.data.issues import Issues
from rljob_trainer.rollouts import LOOK_S, Sampler
from rljob_trainer.samples import Group, Prompt

log = logging.getLogger(__name__)


@dataclass
class AheadRollouts:
    """Generates beside the loop, and waits for no more than the step at hand."""

    issues: Issues
    sampler: Sampler
    sampling: Sampling
    prompts_per_step: int
    samples_per_prompt: int
    max_staleness: int
    background: Background
    waiting: Callable[[], None]
    """called again and again while the loop waits for samples"""
    _asked: dict[int, "Future[tuple[Group, ...]]"] = field(default_factory=dict)
    """first rounds of steps that have begun and not been taken"""

    def take(self, step: int) -> tuple[Group, ...]:
        """Return the groups of `step`."""
        return self.generate(step, self.prompts_per_step)

    def generate(self, step: int, num_prompts: int) -> tuple[Group, ...]:
        """Return the groups of the next round of `step`: of its first, or of `num_prompts` further prompts."""
        for each, prompts in self.issues.begin(step):
            self._asked[each] = self._ask(each, prompts)
        asked = self._asked.pop(step, None) or self._ask(step, self.issues.more(step, num_prompts))
        while not wait([asked], timeout=LOOK_S).done:
            self.waiting()
        return asked.result()

    def consumed(self, step: int) -> None:
        """Journal that the learner has taken its step on the prompts of `step`."""
        self.issues.journal.consumed(step)

    def close(self) -> None:
        """Wait for nothing any more; what was asked is asked again by a run that goes on."""
        for step, asked in self._asked.items():
            asked.cancel()
            log.info("action=leave_unfinished step=%d", step)

    def _ask(self, step: int, prompts: Sequence[Prompt]) -> "Future[tuple[Group, ...]]":
        oldest = step - self.max_staleness
        return self.background.submit(
            self.sampler.groups(prompts, self.sampling, self.samples_per_prompt, oldest=oldest)
        )
