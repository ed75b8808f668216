"""Reads the GPUs of this machine through NVML, where its library loads. What a GPU does not say is None, no error."""

import ctypes
import logging
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import pynvml

from rljob_trainer.gpus.readings import Looked, Reading, Xid, bus_in_logs

log = logging.getLogger(__name__)

Library = types.ModuleType | Any
"""`pynvml`, or what stands for it in tests"""
MOST_EVENTS = 100
"""of one look; a broken GPU may report the same error without end"""
T = TypeVar("T")


class Reader(Protocol):
    def look(self) -> Looked:
        """Return what the GPUs do now, and their errors since the last call."""


class NoReader:
    """Stands for NVML where there is none."""

    def look(self) -> Looked:
        """Return nothing."""
        return Looked()


def open_reader(node: str, names: Sequence[str], library: Library = pynvml) -> Reader:
    """Return the reader of these GPUs (indices or UUIDs) of `node`, which is this machine."""
    try:
        library.nvmlInit()
        return NvmlReader(node, names, library)
    except library.NVMLError as error:
        log.warning("action=read_gpus node=%s outcome=off reason=%s", node, error)
        return NoReader()


class NvmlReader:
    """The GPUs of this machine."""

    def __init__(self, node: str, names: Sequence[str], library: Library) -> None:
        """`library` is initialised. Raises its NVMLError for a GPU that it does not know."""
        self._library = library
        self._handles = {f"{node}:{name}": device_of(library, name) for name in names}
        self._node = node
        # Kept: a GPU that is lost no longer says where it is.
        self._places = {key(handle): (gpu, self._bus(handle)) for gpu, handle in self._handles.items()}
        self._events = self._registered()

    def look(self) -> Looked:
        readings = tuple(self._read(gpu, handle) for gpu, handle in self._handles.items())
        return Looked(readings, tuple(self._new_xids()))

    def _bus(self, handle: Any) -> str:
        bus = self._library.nvmlDeviceGetPciInfo(handle).busId
        return bus_in_logs(bus.decode() if isinstance(bus, bytes) else bus)

    def _read(self, gpu: str, handle: Any) -> Reading:
        library, known = self._library, self._known
        utilisation = known(lambda: library.nvmlDeviceGetUtilizationRates(handle).gpu)
        memory = known(lambda: library.nvmlDeviceGetMemoryInfo(handle))
        power = known(lambda: library.nvmlDeviceGetPowerUsage(handle))
        temperature = known(lambda: library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU))
        ecc = known(
            lambda: library.nvmlDeviceGetTotalEccErrors(
                handle, library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC
            )
        )
        return Reading(
            gpu,
            utilisation=None if utilisation is None else utilisation / 100,
            memory_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_watts=None if power is None else power / 1000,
            temperature=None if temperature is None else float(temperature),
            clock_reasons=known(lambda: int(library.nvmlDeviceGetCurrentClocksEventReasons(handle))) or 0,
            ecc_errors=None if ecc is None else int(ecc),
        )

    def _registered(self) -> Any:
        """Return the set of events that collects Xid errors; None: no GPU reports them."""
        library = self._library
        events = self._known(library.nvmlEventSetCreate)
        if events is None:
            return None
        for gpu, handle in self._handles.items():
            try:
                library.nvmlDeviceRegisterEvents(handle, library.nvmlEventTypeXidCriticalError, events)
            except library.NVMLError as error:
                log.warning("action=read_gpus gpu=%s outcome=no_xids reason=%s", gpu, error)
        return events

    def _new_xids(self) -> Iterator[Xid]:
        for _ in range(MOST_EVENTS if self._events is not None else 0):
            event = self._known(lambda: self._library.nvmlEventSetWait_v2(self._events, 0))
            if event is None:  # none is waiting
                return
            gpu, bus = self._places.get(key(event.device), (f"{self._node}:?", "?"))
            yield Xid(gpu, bus, int(event.eventData))

    def _known(self, ask: Callable[[], T]) -> T | None:
        return known(self._library, ask)


def device_of(library: Library, name: str) -> Any:
    """Return NVML's handle of a GPU by its index or UUID. Raises its NVMLError for a GPU that it does not know."""
    if name.isdecimal():
        return library.nvmlDeviceGetHandleByIndex(int(name))
    handle = library.nvmlDeviceGetHandleByUUID(name)
    # A part of a GPU (MIG) has no separate temperature, power or errors: the whole GPU does.
    whole = known(library, lambda: library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
    return handle if whole is None else whole


def known(library: Library, ask: Callable[[], T]) -> T | None:
    """Return the answer; None where the GPU or this version of its driver has none."""
    try:
        return ask()
    except library.NVMLError:
        return None


def key(handle: Any) -> int | None:
    """Return what two handles of one GPU have in common; ctypes compares pointers by identity."""
    return ctypes.cast(handle, ctypes.c_void_p).value
