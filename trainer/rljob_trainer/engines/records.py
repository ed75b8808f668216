"""What a pool is told, and what it tells of its engines. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """From `spec.recovery`."""

    probe_failures: int
    """failed probes in a row that make an engine dead"""
    probe_interval_s: float
    probe_timeout_s: float
    start_timeout_s: float
    engines_per_node: int = 1
    """so many leave together, see `scaling.leaving`"""


@dataclass(frozen=True, slots=True)
class Incident:
    """An engine's failure and what became of it; times in seconds, None where it has not come to that."""

    engine: str
    generation: int
    cause: str
    detail: str
    at: float
    """unix time of the verdict [s]"""
    detected_s: float | None
    """from the failure, as far as its time is known, to the verdict"""
    rerouted_s: float | None = None
    """from the verdict until the router sent it nothing"""
    returned_s: float | None = None
    """from the verdict until it served the current weights again"""


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One engine, for the control protocol."""

    name: str
    state: str
    generation: int
    restarts: int
    version: int | None
    last_error: str
    url: str | None
    pid: int | None
    node: str | None
