"""What an engine's state becomes when something happens to it. Pure: no clock, no network.

    Starting ─Started─► Stale ─WeightsVerified(current)─► Healthy ◄─► Suspect    any ─► Dead ─RestartOrdered─► Starting

Only `WeightsVerified` of the current version leads to Healthy, and only from a state that answers: an engine that was
dead holds old weights, however well it answers. Every event names the generation that it was observed on; what is heard
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
    """Serves, but something failed. Probes and requests count apart: a wedged engine still answers its probes."""

    generation: int
    version: int
    probe_failures: int
    request_failures: int


@dataclass(frozen=True, slots=True)
class Dead:
    """Out of service until a restart is ordered."""

    generation: int
    cause: str
    """in a word, for example `ProcessExited`"""


State = Starting | Stale | Healthy | Suspect | Dead
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
class RequestOk:
    generation: int


@dataclass(frozen=True, slots=True)
class RequestFailed:
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


Event = (
    Started
    | ProbeOk
    | ProbeFailed
    | RequestOk
    | RequestFailed
    | ProcessExited
    | StartFailed
    | WeightsVerified
    | PublishFailed
    | VersionMoved
    | RestartOrdered
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many failures in a row make an engine dead."""

    probe_failures: int
    request_failures: int


def advance(state: State, event: Event, current: int | None, limits: Limits) -> State:
    """Return the state after `event`; `current` is the published version, None before the first publication."""
    if isinstance(event, RestartOrdered):
        return Starting(event.generation) if event.generation > state.generation else state
    if event.generation != state.generation or isinstance(state, Dead):
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
        case ProbeOk() | RequestOk() | ProbeFailed() | RequestFailed():
            return _counted(state, event, limits)


def _answers(state: State) -> bool:
    return isinstance(state, Stale | Serving)


def _counted(
    state: Starting | Stale | Serving, event: ProbeOk | RequestOk | ProbeFailed | RequestFailed, limits: Limits
) -> State:
    match state:
        case Starting():
            return state
        case Stale():
            probes = _probes(state.probe_failures, event)
            too_many = probes >= limits.probe_failures
            return Dead(state.generation, "Unresponsive") if too_many else replace(state, probe_failures=probes)
        case Healthy():
            return _counted(Suspect(state.generation, state.version, 0, 0), event, limits)
        case Suspect():
            probes = _probes(state.probe_failures, event)
            requests = _requests(state.request_failures, event)
            if probes >= limits.probe_failures:
                return Dead(state.generation, "Unresponsive")
            if requests >= limits.request_failures:
                return Dead(state.generation, "RequestsFail")
            if probes == requests == 0:
                return Healthy(state.generation, state.version)
            return replace(state, probe_failures=probes, request_failures=requests)


def _probes(failures: int, event: Event) -> int:
    match event:
        case ProbeOk():
            return 0
        case ProbeFailed():
            return failures + 1
        case _:
            return failures


def _requests(failures: int, event: Event) -> int:
    match event:
        case RequestOk():
            return 0
        case RequestFailed():
            return failures + 1
        case _:
            return failures
