"""What is read from GPUs, and what a step's readings say of each. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from rljob_trainer.gpu_metrics import GpuUse

HOT = 0x20 | 0x40
"""NVML's reasons for lower clocks: software and hardware slowdown because of heat"""
BRAKED = 0x80
"""the power supply asked for less (power brake)"""
SLOWED = 0x8
"""a hardware slowdown; heat or power brake, if NVML does not say which"""


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU at one moment. None: its driver does not say."""

    gpu: str
    """NODE:GPU"""
    utilisation: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    temperature: float | None = None
    """[°C]"""
    clock_reasons: int = 0
    """why clocks are lower than they could be: bits, see NVML's clocks event reasons"""
    ecc_errors: int | None = None
    """memory errors since the driver was loaded that could not be corrected"""


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the GPU's driver reported."""

    gpu: str
    """NODE:GPU"""
    bus: str
    """as the kernel's log has it, for example `0000:5d:00`"""
    number: int


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look at the GPUs of a node saw."""

    readings: tuple[Reading, ...] = ()
    xids: tuple[Xid, ...] = ()
    """since the last look"""


@dataclass
class Gathered:
    """The looks since the last step. Not safe for threads."""

    readings: dict[str, list[Reading]] = field(default_factory=dict)
    xids: list[Xid] = field(default_factory=list)
    ecc: dict[str, int] = field(default_factory=dict)
    """last count of each GPU, also of earlier steps"""
    new_ecc: dict[str, int] = field(default_factory=dict)

    def add(self, looked: Looked) -> dict[str, int]:
        """Add a look; return the GPUs with new memory errors, and how many."""
        new: dict[str, int] = {}
        for reading in looked.readings:
            self.readings.setdefault(reading.gpu, []).append(reading)
            if reading.ecc_errors is not None:
                # Errors from before the first reading are not this run's.
                more = reading.ecc_errors - self.ecc.get(reading.gpu, reading.ecc_errors)
                self.ecc[reading.gpu] = reading.ecc_errors
                if more > 0:
                    new[reading.gpu] = more
        for gpu, more in new.items():
            self.new_ecc[gpu] = self.new_ecc.get(gpu, 0) + more
        self.xids += looked.xids
        return new

    def take(self) -> dict[str, GpuUse]:
        """Return each GPU's use since the last call."""
        uses = {gpu: use_of(readings) for gpu, readings in sorted(self.readings.items())}
        uses |= {xid.gpu: GpuUse() for xid in self.xids if xid.gpu not in uses}
        taken = {
            gpu: replace(
                use,
                xids=tuple(xid.number for xid in self.xids if xid.gpu == gpu),
                ecc_errors=self.new_ecc.get(gpu, 0),
            )
            for gpu, use in uses.items()
        }
        self.readings, self.xids, self.new_ecc = {}, [], {}
        return taken


def use_of(readings: Sequence[Reading]) -> GpuUse:
    """Return what the readings of one GPU say; there is at least one."""
    return GpuUse(
        utilisation=mean([reading.utilisation for reading in readings]),
        memory_bytes=max((each.memory_bytes for each in readings if each.memory_bytes is not None), default=None),
        memory_total_bytes=readings[-1].memory_total_bytes,
        power_watts=mean([reading.power_watts for reading in readings]),
        temperature=max((each.temperature for each in readings if each.temperature is not None), default=None),
        hot=fmean(is_hot(reading.clock_reasons) for reading in readings),
        braked=fmean(is_braked(reading.clock_reasons) for reading in readings),
    )


def is_hot(reasons: int) -> bool:
    return bool(reasons & HOT)


def is_braked(reasons: int) -> bool:
    """Whether something outside the GPU slowed it down; its own power limit, usual at full load, does not count."""
    return not is_hot(reasons) and bool(reasons & (BRAKED | SLOWED))


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def names_of(visible: str | None, count: int) -> tuple[str, ...]:
    """Return the GPUs of a run on a node, as indices or UUIDs: those of CUDA_VISIBLE_DEVICES, or the first `count`."""
    named = [name.strip() for name in visible.split(",")] if visible else [str(index) for index in range(count)]
    return tuple(name for name in named if name)[:count]


def bus_in_logs(bus_id: str) -> str:
    """Return NVML's PCI bus id (`00000000:5D:00.0`) as the kernel's log has it (`0000:5d:00`)."""
    domain, bus, device = bus_id.lower().partition(".")[0].split(":")
    return f"{domain[-4:]}:{bus}:{device}"
