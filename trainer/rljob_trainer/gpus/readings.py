"""What is read from GPUs, and what a step's readings say of each. Pure."""

from dataclasses import dataclass, field, replace

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


@dataclass(slots=True)
class Tally:
    """The readings of one GPU since the last step, summed up: in a long step there are thousands."""

    looks: int = 0
    hot: int = 0
    braked: int = 0
    utilisation: list[float] = field(default_factory=lambda: [0.0, 0])
    power_watts: list[float] = field(default_factory=lambda: [0.0, 0])
    """sum, and number of what was known"""
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature: float | None = None

    def add(self, reading: Reading) -> None:
        """Add a reading."""
        self.looks += 1
        self.hot += is_hot(reading.clock_reasons)
        self.braked += is_braked(reading.clock_reasons)
        self.memory_total_bytes = reading.memory_total_bytes
        for known, value in ((self.utilisation, reading.utilisation), (self.power_watts, reading.power_watts)):
            if value is not None:
                known[0] += value
                known[1] += 1
        if reading.memory_bytes is not None:
            self.memory_bytes = max(self.memory_bytes or 0, reading.memory_bytes)
        if reading.temperature is not None:
            hottest = reading.temperature if self.temperature is None else self.temperature
            self.temperature = max(hottest, reading.temperature)

    @property
    def use(self) -> GpuUse:
        """What the readings say; there is at least one."""
        return GpuUse(
            utilisation=mean(*self.utilisation),
            memory_bytes=self.memory_bytes,
            memory_total_bytes=self.memory_total_bytes,
            power_watts=mean(*self.power_watts),
            temperature=self.temperature,
            hot=self.hot / self.looks,
            braked=self.braked / self.looks,
        )


@dataclass
class Gathered:
    """The looks since the last step. Not safe for threads."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    xids: list[Xid] = field(default_factory=list)
    ecc: dict[str, int] = field(default_factory=dict)
    """last count of each GPU, also of earlier steps"""
    new_ecc: dict[str, int] = field(default_factory=dict)

    def add(self, looked: Looked) -> dict[str, int]:
        """Add a look; return the GPUs with new memory errors, and how many."""
        new: dict[str, int] = {}
        for reading in looked.readings:
            self.tallies.setdefault(reading.gpu, Tally()).add(reading)
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
        uses = {gpu: tally.use for gpu, tally in sorted(self.tallies.items())}
        numbers: dict[str, tuple[int, ...]] = {}
        for xid in self.xids:
            numbers[xid.gpu] = (*numbers.get(xid.gpu, ()), xid.number)
        for gpu in numbers.keys() | self.new_ecc.keys():
            use = uses.get(gpu, GpuUse())
            uses[gpu] = replace(use, xids=numbers.get(gpu, ()), ecc_errors=self.new_ecc.get(gpu, 0))
        self.tallies, self.xids, self.new_ecc = {}, [], {}
        return uses


def is_hot(reasons: int) -> bool:
    return bool(reasons & HOT)


def is_braked(reasons: int) -> bool:
    """Whether something outside the GPU slowed it down; its own power limit, usual at full load, does not count."""
    return not is_hot(reasons) and bool(reasons & (BRAKED | SLOWED))


def mean(total: float, number: float) -> float | None:
    return total / number if number else None


def names_of(visible: str | None, count: int) -> tuple[str, ...]:
    """Return the GPUs of a run on a node, as indices or UUIDs: those of CUDA_VISIBLE_DEVICES, or the first `count`."""
    named = [name.strip() for name in visible.split(",")] if visible else [str(index) for index in range(count)]
    return tuple(name for name in named if name)[:count]


def bus_in_logs(bus_id: str) -> str:
    """Return NVML's PCI bus id (`00000000:5D:00.0`) as the kernel's log has it (`0000:5d:00`)."""
    domain, bus, device = bus_id.lower().partition(".")[0].split(":")
    return f"{domain[-4:]}:{bus}:{device}"
