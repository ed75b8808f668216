"""The lines of the table of metrics for what is around the training: what one GPU did in a step, and what the world
outside has cost; `metrics.py` has the others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from rljob_trainer.metric_table import Metric, Plot, derived, metric


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse:
    """One GPU during a step, from readings every few seconds. None: its driver does not say."""

    utilisation: float | None = None
    """mean share of time in which a kernel ran"""
    memory_bytes: int | None = None
    """most that all processes used"""
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    """mean"""
    temperature: float | None = None
    """highest [°C]"""
    hot: float = 0.0
    """share of the readings in which heat lowered the clocks"""
    braked: float = 0.0
    """share of the readings in which the power supply or another fault outside the GPU lowered the clocks"""
    xids: tuple[int, ...] = ()
    """errors that the driver reported"""
    ecc_errors: int = 0
    """memory errors that could not be corrected"""

    @property
    def slowed(self) -> float:
        """Share of the readings in which the GPU was slowed down for either reason, at most."""
        return min(1.0, self.hot + self.braked)


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Of the GPUs whose driver says it."""

    least: float
    mean: float
    most: float
    number: int
    """of these GPUs"""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSummary:
    """All GPUs of a large run during a step. None: no driver says it."""

    gpus: int
    utilisation: Range | None = None
    memory_bytes: Range | None = None
    power_watts: Range | None = None
    temperature: Range | None = None
    """[°C]"""
    slowed: Range | None = None
    xids: int = 0
    ecc_errors: int = 0


@dataclass(frozen=True, kw_only=True)
class GpuMetrics:
    """Of all GPUs of the run. Empty without GPUs, without NVML, and for a step without a reading."""

    gpus: Mapping[str, GpuUse] = field(default_factory=dict)
    """by NODE:GPU, for example `10.0.0.7:0`; of a large run those that stand out, see `reporting/gpu_sample.py`"""
    gpu_summary: GpuSummary | None = None
    """of all GPUs; None: `gpus` has them all"""

    @property
    @derived(
        Metric(
            "Share of time in which a kernel ran, mean of the GPUs",
            "share",
            "rljob_gpu_utilisation_ratio",
            "perf/gpu_utilisation",
            plot=Plot("Utilisation of the GPUs", "mean", low=0.0, note="A kernel ran; it may have used few cores."),
        )
    )
    def gpu_utilisation(self) -> float | None:
        if self.gpu_summary is not None:
            return None if (over_all := self.gpu_summary.utilisation) is None else over_all.mean
        known = [use.utilisation for use in self.gpus.values() if use.utilisation is not None]
        return fmean(known) if known else None

    @property
    @derived(
        Metric(
            "Memory in use on the GPU that uses most",
            "bytes",
            "rljob_gpu_memory_bytes",
            "perf/gpu_memory_bytes",
            plot=Plot("Memory of the fullest GPU", "in use", low=0.0),
        )
    )
    def gpu_memory(self) -> float | None:
        if self.gpu_summary is not None:
            return None if (over_all := self.gpu_summary.memory_bytes) is None else over_all.most
        return max((use.memory_bytes for use in self.gpus.values() if use.memory_bytes is not None), default=None)

    @property
    @derived(
        Metric(
            "Power of all GPUs together",
            "W",
            "rljob_gpu_power_watts",
            "perf/gpu_power_watts",
            plot=Plot("Power of all GPUs", "power", low=0.0),
        )
    )
    def gpu_power(self) -> float | None:
        if self.gpu_summary is not None:
            return None if (power := self.gpu_summary.power_watts) is None else power.mean * power.number
        known = [use.power_watts for use in self.gpus.values() if use.power_watts is not None]
        return sum(known) if known else None

    @property
    @derived(
        Metric(
            "Temperature of the hottest GPU",
            "°C",
            "rljob_gpu_temperature_celsius",
            "perf/gpu_temperature",
            plot=Plot("Temperature of the hottest GPU", "temperature"),
        )
    )
    def gpu_temperature(self) -> float | None:
        if self.gpu_summary is not None:
            return None if (over_all := self.gpu_summary.temperature) is None else over_all.most
        return max((use.temperature for use in self.gpus.values() if use.temperature is not None), default=None)

    @property
    @derived(
        Metric(
            "Share of readings in which heat or the power supply slowed a GPU down, of the GPU where that is most",
            "share",
            "rljob_gpu_throttled_ratio",
            "perf/gpu_throttled",
        )
    )
    def gpu_throttled(self) -> float | None:
        if self.gpu_summary is not None:
            return None if (over_all := self.gpu_summary.slowed) is None else over_all.most
        return max((use.slowed for use in self.gpus.values()), default=None)

    @property
    @derived(Metric("Xid errors of all GPUs", counter="rljob_gpu_xids", tag="perf/gpu_xids"))
    def gpu_xids(self) -> int:
        if self.gpu_summary is not None:
            return self.gpu_summary.xids
        return sum(len(use.xids) for use in self.gpus.values())

    @property
    @derived(
        Metric(
            "Memory errors of all GPUs that could not be corrected (ECC)",
            counter="rljob_gpu_ecc_errors",
            tag="perf/gpu_ecc_errors",
        )
    )
    def gpu_ecc_errors(self) -> int:
        if self.gpu_summary is not None:
            return self.gpu_summary.ecc_errors
        return sum(use.ecc_errors for use in self.gpus.values())


@dataclass(frozen=True, kw_only=True)
class LostMetrics:
    """Since the last step, evaluations included."""

    lost_samples: int = metric(
        "Samples that were lost to a function, an engine or a judge that failed, and were not used",
        default=0,
        counter="rljob_lost_samples",
        tag="rollout/lost_samples",
    )
    storage_errors: int = metric(
        "Operations on the run directory that failed and were repeated, or left for later",
        default=0,
        counter="rljob_storage_errors",
        tag="perf/storage_errors",
    )
    agent_restarts: int = metric(
        "Trajectories of agents that were started again after a failure",
        default=0,
        counter="rljob_agent_restarts",
        tag="rollout/agent_restarts",
    )
    agent_cut_offs: int = metric(
        "Requests of agents that were cut off because their gateway ended, and had to be repeated",
        default=0,
        counter="rljob_agent_cut_offs",
        tag="rollout/agent_cut_offs",
    )
    losses: Mapping[str, int] = field(default_factory=dict)
    """what was lost by cause, see `losses.Cause`"""
