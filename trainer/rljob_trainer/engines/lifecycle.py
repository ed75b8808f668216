"""Decides the next state of an engine from its state and an event. Pure: no clock, no network.

    Starting ─Started─► Stale ─WeightsVerified(current)─► Healthy ◄─► Suspect    any ─► Dead ─RestartOrdered─► Starting
                                                                                 any ─LeaveOrdered─► Leaving
Only `WeightsVerified` of the current version leads to Healthy, and only from a state that answers: an engine that was
dead holds old weights, however well it answers. Every event names the generation that it was observed on; an event
of an earlier one changes nothing.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Starting:
    """The process is being started; it gets neither traffic nor weights."""

    generation: int


@dataclass(frozen=True, slots=True)
class Stale:
    """Answers, but is not known to hold the current weights: no traffic."""

    generation: int
    probe_failures: int = 0
    """failed probes in a row"""


@dataclass(frozen=True, slots=True)
class Healthy:
    """Serves."""

    generation: int
    version: int
    """of the weights it was verified to hold"""


@dataclass(frozen=True, slots=True)
class Suspect:
    """Serves, but does not answer its probes."""

    generation: int
    version: int
    probe_failures: int
    """in a row"""


@dataclass(frozen=True, slots=True)
class Dead:
    """Out of service until a restart is ordered."""

    generation: int
    cause: str
    """in a word, for example `ProcessExited`"""


@dataclass(frozen=True, slots=True)
class Leaving:
    """Gets no more requests and never returns; what happens to it no longer counts as a failure."""

    generation: int


State = Starting | Stale | Healthy | Suspect | Dead | Leaving
Serving = Healthy | Suspect


@dataclass(frozen=True, slots=True)
class Started:
    generation: int


@dataclass(frozen=True, slots=True)
class ProbeOk:
    generation: int


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    generation: int


@dataclass(frozen=True, slots=True)
class ProcessExited:
    generation: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    generation: int


@dataclass(frozen=True, slots=True)
class WeightsVerified:
    generation: int
    version: int


@dataclass(frozen=True, slots=True)
class PublishFailed:
    generation: int


@dataclass(frozen=True, slots=True)
class VersionMoved:
    """The current version is another one now; an engine that was not verified to hold it is stale."""

    generation: int


@dataclass(frozen=True, slots=True)
class RestartOrdered:
    generation: int
    """of the process to be started; asking for one that has been reached is harmless"""


@dataclass(frozen=True, slots=True)
class LeaveOrdered:
    """The fleet shrinks by this engine."""

    generation: int


Event = (
    Started
    | ProbeOk
    | ProbeFailed
    | ProcessExited
    | StartFailed
    | WeightsVerified
    | PublishFailed
    | VersionMoved
    | RestartOrdered
    | LeaveOrdered
)


def advance(state: State, event: Event, current: int | None, max_failures: int) -> State:
    """Return the state after `event`; `current` is the published version, None before the first publication.

    `max_failures` failed probes in a row make an engine dead.
    """
    if isinstance(state, Leaving):
        return state
    if isinstance(event, RestartOrdered):
        return Starting(event.generation) if event.generation > state.generation else state
    if event.generation != state.generation:
        return state
    if isinstance(event, LeaveOrdered):
        return Leaving(state.generation)
    if isinstance(state, Dead):
        return state
    match event:
        case ProcessExited() | StartFailed() | PublishFailed():
            return Dead(state.generation, type(event).__name__)
        case Started():
            return Stale(state.generation) if isinstance(state, Starting) else state
        case WeightsVerified(version=version):
            return Healthy(state.generation, version) if version == current and _answers(state) else state
        case VersionMoved():
            return Stale(state.generation) if isinstance(state, Serving) and state.version != current else state
        case ProbeOk():
            return _answered(state)
        case ProbeFailed():
            return _unanswered(state, max_failures)


def _answers(state: State) -> bool:
    return isinstance(state, Stale | Serving)


def _answered(state: Starting | Stale | Serving) -> State:
    match state:
        case Stale():
            return Stale(state.generation)
        case Suspect():
            return Healthy(state.generation, state.version)
        case _:
            return state


def _unanswered(state: Starting | Stale | Serving, max_failures: int) -> State:
    match state:
        case Starting():
            return state
        case Healthy():
            return _unanswered(Suspect(state.generation, state.version, 0), max_failures)
        case Stale() | Suspect():
            failures = state.probe_failures + 1
            dead = failures >= max_failures
            return Dead(state.generation, "Unresponsive") if dead else replace(state, probe_failures=failures)
