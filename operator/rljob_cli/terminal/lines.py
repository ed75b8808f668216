"""The display of `rljob run` where there is no terminal: one plain line for everything that happens."""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, Self

from rljob_api.control import Finding, Incident, Progress, Status
from rljob_cli.terminal.formats import rate, seconds
from rljob_cli.terminal.panels import RunFacts

LONG_PHASE_S: Final = 10.0
"""phases that took longer have a separate line"""
_SHOWN_PHASES: Final = ("rollout", "train", "publish")


class LineDisplay:
    """Writes a line for each step, evaluation, failure, return, finding and long phase that is new in a status."""

    def __init__(self, facts: RunFacts, write: Callable[[str], None]) -> None:
        self._facts = facts
        self._write = write
        self._last = Status()

    def __enter__(self) -> Self:
        facts = self._facts
        self._write(f"{facts.name}: {facts.model} learns {facts.task}, {facts.steps} steps; files in {facts.directory}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing behind: every line is complete."""

    def update(self, status: Status) -> None:
        """Write what is new."""
        for line in news(self._last, status):
            self._write(line)
        self._last = status

    def note(self, text: str) -> None:
        """Write a line."""
        self._write(text)


def news(old: Status, new: Status) -> Iterator[str]:
    """Yield a line for each thing that happened between two statuses."""
    yield from _long_phase(old, new)
    evaluations = dict(_evaluations(old.progress, new.progress))
    yield from (line for step, line in evaluations.items() if step < new.progress.step)
    if new.progress.step != old.progress.step and new.progress.last_step_seconds:
        yield step_line(new.progress)
    yield from (line for step, line in evaluations.items() if step >= new.progress.step)
    known = {(incident.engine, incident.generation): incident for incident in old.incidents}
    for incident in new.incidents:
        yield from _incident(known.get((incident.engine, incident.generation)), incident)
    yield from _findings(old.findings, new.findings)
    if new.checkpoint and new.checkpoint != old.checkpoint:
        yield f"saved step {new.checkpoint.step} in {new.checkpoint.path}"


def step_line(progress: Progress) -> str:
    """Return, for example, `step 12/38  reward 0.31  held-out 0.42  rollout 3.9s train 2.2s  182 tok/s  eta 2m40s`."""
    phases = progress.last_step_seconds
    parts = [f"step {progress.step}/{progress.steps}"]
    if progress.reward_mean is not None:
        parts.append(f"reward {progress.reward_mean:.2f}")
    if progress.perplexities:
        parts.append(f"perplexity {progress.perplexities[-1]:.3g}")
    if progress.accuracy_sampled:
        parts.append(f"held-out {progress.accuracy_sampled[-1].accuracy:.2f}")
    parts.append(" ".join(f"{phase} {seconds(phases[phase])}" for phase in _SHOWN_PHASES if phase in phases))
    if progress.tokens_per_second.rollout is not None:
        parts.append(f"{rate(progress.tokens_per_second.rollout)} tok/s")
    if progress.eta_seconds:
        parts.append(f"eta {seconds(progress.eta_seconds)}")
    return "  ".join(parts)


def _long_phase(old: Status, new: Status) -> Iterator[str]:
    """Yield a line about a phase that has just ended, unless missing revisions may have hidden other phases."""
    ended = new.attempt == old.attempt and new.revision == old.revision + 1 and new.phase_since != old.phase_since
    if ended and old.phase_since and (lasted := new.phase_since - old.phase_since) > LONG_PHASE_S:
        yield f"{old.phase} took {seconds(lasted)}"


def _evaluations(old: Progress, new: Progress) -> Iterator[tuple[int, str]]:
    greedy = {point.step: point.accuracy for point in new.accuracy_greedy}
    seen = {point.step for point in old.accuracy_sampled}
    for point in new.accuracy_sampled:
        if point.step not in seen:
            also = f" (greedy {greedy[point.step]:.2f})" if point.step in greedy else ""
            sets = [
                f"{name} {each.sampled:.2f}" for name, each in new.evaluation_sets.items() if each.step == point.step
            ]
            shown = ", ".join([f"held-out accuracy {point.accuracy:.2f}{also}", *sets])
            yield point.step, f"{shown} at step {point.step}"
    known = {look.step for look in old.held_out_perplexity}
    for look in new.held_out_perplexity:
        if look.step not in known:
            yield look.step, f"held-out perplexity {look.perplexity:.3g} at step {look.step}"


def _incident(old: Incident | None, new: Incident) -> Iterator[str]:
    if old is None:
        times = [
            f"{name} after {seconds(value)}"
            for name, value in (("detected", new.detect_seconds), ("rerouted", new.reroute_seconds))
            if value is not None
        ]
        yield f"{new.engine} failed: {new.error}" + (f" ({', '.join(times)})" if times else "")
    if new.return_seconds is not None and (old is None or old.return_seconds is None):
        yield f"{new.engine} is back after {seconds(new.return_seconds)}"


def _findings(old: Sequence[Finding], new: Sequence[Finding]) -> Iterator[str]:
    before, now = {finding.name for finding in old}, {finding.name for finding in new}
    yield from (f"{each.name}: {each.evidence}; {each.advice}" for each in new if each.name not in before)
    yield from (f"{each.name} holds no more" for each in old if each.name not in now)
