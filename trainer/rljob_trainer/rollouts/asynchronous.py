"""Asynchronous rollouts: while the learner trains a step, engines sample the next ones.

    collect(k): start all steps that may begin now (`data/prompt_scheduler.py`) ─► wait for those of step k

The bound: step k, counted from 0, is trained on no token of a weights version older than k - S. Its prompts are
first sent when the engines hold at least that version; every sample is checked nevertheless.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from rljob_api.sections import Sampling
from rljob_trainer.data.prompt_scheduler import PromptScheduler
from rljob_trainer.processes.background import Background
from rljob_trainer.rollouts.sampler import LOOK_S, Sampler
from rljob_trainer.samples import Group, Prompt

log = logging.getLogger(__name__)


@dataclass
class AsyncRollouts:
    """Samples beside the loop; the loop waits only for the step at hand."""

    scheduler: PromptScheduler
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

    def collect(self, step: int) -> tuple[Group, ...]:
        """Return the groups of `step`."""
        return self.collect_round(step, self.prompts_per_step)

    def collect_round(self, step: int, num_prompts: int) -> tuple[Group, ...]:
        """Return the groups of the next round of `step`: of its first, or of `num_prompts` further prompts."""
        for each, prompts in self.scheduler.begin(step):
            self._asked[each] = self._ask(each, prompts)
        asked = self._asked.pop(step, None) or self._ask(step, self.scheduler.more(step, num_prompts))
        while not wait([asked], timeout=LOOK_S).done:
            self.waiting()
        return asked.result()

    def consumed(self, step: int) -> None:
        """Journal that the learner has taken its step on the prompts of `step`."""
        self.scheduler.journal.consumed(step)

    def close(self) -> None:
        """Cancel what is under way; a resumed run reissues its prompts."""
        for step, asked in self._asked.items():
            asked.cancel()
            log.info("action=leave_unfinished step=%d", step)

    def _ask(self, step: int, prompts: Sequence[Prompt]) -> "Future[tuple[Group, ...]]":
        oldest = step - self.max_staleness
        return self.background.submit(
            self.sampler.groups(prompts, self.sampling, self.samples_per_prompt, oldest=oldest)
        )
