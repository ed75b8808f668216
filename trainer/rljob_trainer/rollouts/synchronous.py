"""Rollouts in step with training: the engines sample a step's prompts while the learner waits."""

from dataclasses import dataclass

from rljob_api.sections import Sampling
from rljob_trainer.data.prompt_scheduler import PromptScheduler
from rljob_trainer.processes.background import Background
from rljob_trainer.rollouts.sampler import Sampler
from rljob_trainer.samples import Group


@dataclass
class SyncRollouts:
    """Generates now, with the current weights, and waits for all."""

    scheduler: PromptScheduler
    sampler: Sampler
    sampling: Sampling
    prompts_per_step: int
    samples_per_prompt: int
    background: Background

    def collect(self, step: int) -> tuple[Group, ...]:
        """Return the groups of `step`."""
        return self.collect_round(step, self.prompts_per_step)

    def collect_round(self, step: int, num_prompts: int) -> tuple[Group, ...]:
        """Return the groups of the next prompts, which are journaled as issued for `step`."""
        prompts = self.scheduler.issue(step, num_prompts)
        work = self.sampler.groups(prompts, self.sampling, self.samples_per_prompt)
        return self.background.run(work, timeout_s=None)

    def consumed(self, step: int) -> None:
        """Journal that the learner has taken its step on the prompts of `step`."""
        self.scheduler.journal.consumed(step)
