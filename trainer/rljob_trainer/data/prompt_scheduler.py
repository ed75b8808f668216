"""Which prompts each step asks, and how long before it begins. Prompts are journaled as issued before they are sent.

    when step k begins, engines hold at least weights version    U x floor(k / U)         U: steps between publications
    so all steps may begin their rollouts up to                  U x floor(k / U) + S     S: bound on staleness

A step of which more is asked later (dynamic sampling) then takes the next prompts. The order depends on steps
and rewards alone, not on the time that anything takes: a run that was killed and resumed writes the same journal. It
issues nothing anew for a step that has its prompts already; unconsumed prompts are reissued.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.rundir.journal import Journal, JournalError
from rljob_trainer.samples import Prompt


@dataclass(frozen=True, slots=True)
class Lead:
    """How far rollouts may be ahead of training [steps]; by default each waits for the weights of its own step."""

    steps: int
    """of the whole run"""
    max_staleness: int = 0
    update_interval: int = 1

    def last(self, step: int) -> int:
        """Return the last step whose rollout may begin when `step` begins."""
        published = step - step % self.update_interval
        return min(published + self.max_staleness, self.steps - 1)


@dataclass
class PromptScheduler:
    """Hands out the prompts of a run, step by step and in rounds. Mutates stream and journal."""

    stream: PromptStream
    journal: Journal
    lead: Lead
    first_round: int
    """prompts that a step asks at first"""
    _waiting: dict[int, tuple[Prompt, ...]] = field(init=False)
    """of each step, prompts that were issued before the run was resumed"""
    _begun: dict[int, tuple[Prompt, ...]] = field(default_factory=dict)
    """first rounds that no step has taken yet"""
    _next: int | None = None
    """the first step that has not begun; None: the run's first"""

    def __post_init__(self) -> None:
        waiting = self.journal.waiting.items()
        self._waiting = {step: tuple(map(self.stream.prompt, uids)) for step, uids in waiting}

    def begin(self, step: int) -> Iterator[tuple[int, tuple[Prompt, ...]]]:
        """Yield each step that may begin when `step` does and has not, with the prompts of its first round.

        Raises JournalError when a step has other than `first_round` prompts from before the run was resumed.
        """
        first = step if self._next is None else self._next
        for each in range(first, self.lead.last(step) + 1):
            self._next = each + 1
            yield each, self._first(each)

    def issue(self, step: int, number: int) -> tuple[Prompt, ...]:
        """Return the prompts of the next round of `step`: its first ones, or `number` further ones."""
        self._begun.update(self.begin(step))
        return self._begun.pop(step, None) or self.more(step, number)

    def more(self, step: int, number: int) -> tuple[Prompt, ...]:
        """Return further prompts for `step`."""
        prompts = self.stream.draw(number)
        self.journal.issued(step, [prompt.uid for prompt in prompts])
        return prompts

    def _first(self, step: int) -> tuple[Prompt, ...]:
        again = self._waiting.pop(step, None)
        if again is None:
            return self.more(step, self.first_round)
        if len(again) != self.first_round:
            raise JournalError(
                f"step {step} was issued {len(again)} prompts before the run was resumed, and the manifest now asks for"
                f" {self.first_round} at first: put rollout.promptsPerStep back, or use another checkpoint.directory"
            )
        return again
