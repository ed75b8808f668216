"""What is due after a step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cadence:
    """Intervals [steps]; the last step is always saved and evaluated."""

    steps: int
    save_interval: int
    evaluation_interval: int

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is due when `step` steps are done."""
        return step == self.steps or step % self.save_interval == 0

    def evaluates(self, step: int) -> bool:
        """Whether an evaluation is due when `step` steps are done."""
        return step == self.steps or step % self.evaluation_interval == 0


@dataclass(frozen=True, slots=True)
class Updates:
    """When engines get new weights; the last ones, and those to be evaluated, always."""

    interval: int
    """in steps"""
    cadence: Cadence
    evaluates: bool
    """whether there is anything to evaluate on"""

    def due(self, step: int) -> bool:
        """Whether the weights after `step` steps are published."""
        evaluated = self.evaluates and self.cadence.evaluates(step)
        return evaluated or step == self.cadence.steps or step % self.interval == 0
