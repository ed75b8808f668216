"""GPUs are read through NVML; what a GPU does not say is missing, and an error of it is never one of ours."""

import ctypes
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

from rljob_trainer.gpus.nvml import MOST_EVENTS, NoReader, NvmlReader, open_reader
from rljob_trainer.gpus.readings import Looked, Reading, Xid

XID = pynvml.nvmlEventTypeXidCriticalError


def refuse(*_: Any) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@dataclass
class FakeNvml:
    """The library as two GPUs show it: the second one says nothing, and its whole card is a MIG device's parent."""

    NVMLError = pynvml.NVMLError
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    NVML_VOLATILE_ECC = pynvml.NVML_VOLATILE_ECC
    nvmlEventTypeXidCriticalError = XID
    events: deque[tuple[int, int]] = field(default_factory=deque)
    registered: list[int] = field(default_factory=list)
    lost: bool = False

    def __post_init__(self) -> None:
        self.cards = [ctypes.pointer(ctypes.c_int(number)) for number in range(2)]

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        if index > 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, name: str) -> Any:
        return ctypes.pointer(ctypes.c_int(7)) if name.startswith("MIG-") else self.cards[int(name[-1])]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any) -> Any:
        return self.cards[1] if handle.contents.value == 7 else refuse()

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
        return refuse() if self.lost else SimpleNamespace(busId=f"00000000:5{handle.contents.value}:00.0")

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return self._of_first(handle, SimpleNamespace(gpu=37, memory=3))

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return self._of_first(handle, SimpleNamespace(used=5, total=9, free=4))

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> Any:
        return self._of_first(handle, 345_600)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> Any:
        return self._of_first(handle, 61) if sensor == pynvml.NVML_TEMPERATURE_GPU else refuse()

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: int, counter: int) -> Any:
        wanted = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return self._of_first(handle, 2) if (kind, counter) == wanted else refuse()

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> Any:
        return self._of_first(handle, pynvml.nvmlClocksEventReasonSwPowerCap)

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlDeviceRegisterEvents(self, handle: Any, kinds: int, events: str) -> None:
        if (kinds, events) != (XID, "set") or handle.contents.value == 1:
            refuse()
        self.registered.append(handle.contents.value)

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:
        if timeout_ms or not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        card, number = self.events.popleft()
        # The library makes a new handle for each event, as here.
        return SimpleNamespace(device=ctypes.pointer(self.cards[card].contents), eventData=number)

    def _of_first(self, handle: Any, value: Any) -> Any:
        return value if handle.contents.value == 0 else refuse()


def test_what_a_gpu_says_is_in_our_units_and_what_it_does_not_say_is_missing():
    assert NvmlReader("a", ["0", "1"], FakeNvml()).look() == Looked(
        (Reading("a:0", 0.37, 5, 9, 345.6, 61.0, pynvml.nvmlClocksEventReasonSwPowerCap, 2), Reading("a:1"))
    )


def test_errors_are_read_once_with_their_gpu_also_when_it_is_lost():
    library = FakeNvml(deque([(0, 79), (0, 31)]))
    reader = NvmlReader("a", ["0", "1"], library)
    library.lost = True
    assert reader.look().xids == (Xid("a:0", "0000:50:00", 79), Xid("a:0", "0000:50:00", 31))
    assert reader.look().xids == ()
    assert library.registered == [0]


def test_an_error_of_another_gpu_is_not_blamed_on_ours():
    assert NvmlReader("a", ["0"], FakeNvml(deque([(1, 48)]))).look().xids == (Xid("a:?", "?", 48),)


def test_errors_without_end_do_not_hold_up_a_look():
    library = FakeNvml(deque([(0, 31)] * (MOST_EVENTS + 1)))
    assert len(NvmlReader("a", ["0"], library).look().xids) == MOST_EVENTS


def test_a_part_of_a_gpu_is_read_as_the_whole_one():
    reader = NvmlReader("a", ["GPU-0", "MIG-x"], FakeNvml(deque([(1, 94)])))
    assert [reading.temperature for reading in reader.look().readings] == [61.0, None]
    assert NvmlReader("a", ["MIG-x"], FakeNvml(deque([(1, 94)]))).look().xids == (Xid("a:MIG-x", "0000:51:00", 94),)


def test_without_nvml_or_with_a_gpu_that_it_does_not_know_nothing_is_read():
    absent = FakeNvml()
    absent.nvmlInit = refuse
    assert isinstance(open_reader("a", ["0"], absent), NoReader)
    assert open_reader("a", ["2"], FakeNvml()).look() == Looked()
    assert len(open_reader("a", ["0"], FakeNvml()).look().readings) == 1


def test_without_sets_of_events_everything_else_is_read():
    library = FakeNvml(deque([(0, 79)]))
    library.nvmlEventSetCreate = refuse
    looked = NvmlReader("a", ["0"], library).look()
    assert (len(looked.readings), looked.xids) == (1, ())


def test_the_installed_library_has_all_that_is_asked():
    asked = [name for name in dir(FakeNvml) if name.startswith(("nvml", "NVML"))]
    assert [name for name in asked if not hasattr(pynvml, name)] == []
