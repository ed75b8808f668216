"""Where the wall clock of a run went, over all starts of its driver. Pure.

The events have the phases of each start and of each step that counts. What is left of the wall clock are steps that a
resume has dropped from the events, by `RunRecord.lost_seconds`, and the time between an attempt and the next one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from rljob_api.control import EFFECTIVE, RECOVERY, ROUTER, Goodput
from rljob_trainer.reporting.records import EndRecord, EngineRecord, ReadyRecord, Record, RunRecord, StepRecord

REDONE: Final = "redone"
"""steps after the checkpoint that the next attempt resumed from"""


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """What the events of a run say of its time. Times are unix times [s]."""

    began: float = 0.0
    """first start of the driver"""
    until: float = 0.0
    """newest record with phases"""
    phases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """of all starts, and of the steps that count [s]"""
    repeated: float = 0.0
    """steps that a resume has repeated [s]"""
    away: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """each failure of an engine: from its last answer until its successor served [s]"""
    starts: int = 0
    """of the driver"""
    gpus: int = 0
    """of the run; on CPU, processes"""
    gpus_per_engine: int = 0

    def after(self, record: Record) -> "TimeSpent":
        """Return the time with one more record, in the order of the events."""
        match record:
            case RunRecord():
                began = self.began if self.until else record.time - sum(record.phase_seconds.values())
                return replace(
                    self._counted(record),
                    began=began,
                    starts=self.starts + 1,
                    repeated=self.repeated + record.lost_seconds,
                    gpus=record.gpus,
                    gpus_per_engine=record.gpus_per_engine,
                )
            case ReadyRecord() | StepRecord() | EndRecord():
                return self._counted(record)
            case EngineRecord() if record.engine != ROUTER:  # its engines are waited for in the phase of the step
                seconds = (record.detect_seconds or 0.0) + (record.return_seconds or 0.0)
                return replace(self, away={**self.away, f"{record.engine} {record.generation}": seconds})
            case _:
                return self

    @property
    def goodput(self) -> Goodput | None:
        """The wall clock by part, the longest first; None: no time has passed yet.

        The effective share is the ratio ETTR of "Revisiting Reliability in Large-Scale Machine Learning Research
        Clusters" (Kokolis et al., 2024), without the wait in a queue.
        """
        wall = self.until - self.began
        if wall <= 0.0:
            return None
        left = max(0.0, wall - sum(self.phases.values())) if self.starts > 1 else 0.0  # else two clocks that differ
        redone = min(self.repeated, left)
        parts = {**self.phases, REDONE: redone, RECOVERY: left - redone}
        effective = sum(self.phases.get(phase, 0.0) for phase in EFFECTIVE)
        away = min(sum(self.away.values()) * self.gpus_per_engine, effective * self.gpus)
        return Goodput(
            wall_seconds=wall,
            effective_share=min(1.0, effective / wall),
            seconds={part: parts[part] for part in sorted(parts, key=lambda part: -parts[part]) if parts[part] > 0.0},
            lost_gpu_seconds=max(0.0, wall - effective) * self.gpus + away,
        )

    def _counted(self, record: RunRecord | ReadyRecord | StepRecord | EndRecord) -> "TimeSpent":
        phases = dict(self.phases)
        for phase, seconds in record.phase_seconds.items():
            phases[phase] = phases.get(phase, 0.0) + seconds
        return replace(self, phases=phases, until=max(self.until, record.time))


def time_spent(records: Iterable[Record]) -> TimeSpent:
    """Return the time that the records of a run tell."""
    spent = TimeSpent()
    for record in records:
        spent = spent.after(record)
    return spent
