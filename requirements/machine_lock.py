"""Which lock `make setup` installs: that for GPUs if this machine's driver can run it, else that for CPUs.

    python3 requirements/machine_lock.py [auto|cpu|gpu]

Prints the name of the lock, and what it found on standard error. It exits with 1 before anything is built if there is a
driver that cannot run the lock. It uses the standard library alone: no environment exists yet.
"""

import argparse
import ctypes
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Version = tuple[int, int]
Lock = Literal["cpu", "gpu"]

OLDEST_DRIVERS: Final = {12: 525, 13: 580}
"""major version of CUDA -> major version of the oldest driver that runs all its minor versions: NVIDIA's table of
"minor version compatibility", https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
"""
OLDEST_CARDS: Final = {12: (5, 0), 13: (7, 5)}
"""major version of CUDA -> lowest compute capability; CUDA 13 ends support of Maxwell, Pascal and Volta"""
NO_DEVICE: Final = 100  # CUDA_ERROR_NO_DEVICE
ATTRIBUTES: Final = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and MINOR
DISPLAY_CONTROLLER: Final = "0x03"
NVIDIA: Final = "0x10de"


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU that programs may use."""

    name: str
    capability: Version


@dataclass(frozen=True, slots=True)
class Machine:
    """What NVIDIA's libraries say here."""

    cards: tuple[Card, ...] = ()
    driver: str = ""
    """version, such as 580.159.04; empty: not known"""
    cuda: Version | None = None
    """newest CUDA that libcuda runs; None: there is no libcuda"""
    libcuda: str = ""
    """file of libcuda"""
    failure: str = ""
    """why libcuda does not start"""
    on_the_bus: int = 0
    """NVIDIA's GPUs on the PCI bus, whether a driver is there or not"""


@dataclass(frozen=True, slots=True)
class Choice:
    """A lock, or None if none may be installed; and the sentence that says why."""

    lock: Lock | None
    why: str


def choose(machine: Machine, cuda: Version, asked: str = "auto") -> Choice:
    """Return the lock for a machine, where that for GPUs brings this version of CUDA."""
    if asked == "cpu":
        return Choice("cpu", "the lock for CPUs, as LOCK says")
    if not machine.cards and not machine.failure:
        if asked == "gpu":
            return Choice(None, f"{_no_gpu(machine, cuda)}. `make setup` without LOCK takes the lock for CPUs")
        return Choice("cpu", f"{_no_gpu(machine, cuda)}. Taken: the lock for CPUs")
    problem = _problem(machine, cuda)
    if problem:
        return Choice(None, f"{problem}, or run `make setup LOCK=cpu`")
    first, count = machine.cards[0].name, len(machine.cards)
    return Choice("gpu", f"{count} × {first}, {_driver(machine)}. Taken: the lock for GPUs, with CUDA {_text(cuda)}")


def _no_gpu(machine: Machine, cuda: Version) -> str:
    if not machine.on_the_bus:
        return "no GPU of NVIDIA"
    return (
        f"no GPU that programs may use, though {machine.on_the_bus} of NVIDIA on the PCI bus: install driver "
        f"{OLDEST_DRIVERS[cuda[0]]} or newer, or start the container with its GPUs"
    )


def _problem(machine: Machine, cuda: Version) -> str:
    """Return why the lock for GPUs would not run here; empty: it would."""
    needed = OLDEST_DRIVERS[cuda[0]]
    wanted = f"the lock for GPUs has CUDA {_text(cuda)}"
    if machine.cuda is not None and machine.cuda[0] < cuda[0]:
        if machine.driver and int(machine.driver.partition(".")[0]) >= needed:
            return (
                f"wrong CUDA: {machine.libcuda or 'libcuda'} runs CUDA {_text(machine.cuda)} only, though the driver "
                f"is {machine.driver}, and {wanted}. Remove the directory of that libcuda from LD_LIBRARY_PATH"
            )
        return f"driver too old: {_driver(machine)}, and {wanted}. Install driver {needed} or newer"
    if machine.failure:
        return f"the driver does not start: {machine.failure}. Restart the machine if its driver was upgraded"
    lowest = OLDEST_CARDS[cuda[0]]
    for card in machine.cards:
        if card.capability < lowest:
            return (
                f"GPU too old: {card.name} has compute capability {_text(card.capability)}, and {wanted}, which needs "
                f"{_text(lowest)}. Hide it with CUDA_VISIBLE_DEVICES"
            )
    return ""


def _driver(machine: Machine) -> str:
    number = f"driver {machine.driver}" if machine.driver else "driver"
    return number if machine.cuda is None else f"{number} for CUDA up to {_text(machine.cuda)}"


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def cuda_of(lock: str) -> Version:
    """Return the version of CUDA that a lock brings."""
    found = re.search(r"^nvidia-cuda-runtime==(\d+)\.(\d+)", lock, re.MULTILINE)
    assert found, "the lock for GPUs has no nvidia-cuda-runtime"
    return int(found[1]), int(found[2])


def this_machine() -> Machine:
    """Ask libcuda for GPUs and CUDA, and NVML for the driver."""
    on_the_bus = sum(map(_is_gpu, Path("/sys/bus/pci/devices").glob("*")))
    driver = _driver_version()
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Machine(driver=driver, on_the_bus=on_the_bus)
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    cuda = (version.value // 1000, version.value % 1000 // 10)
    error = library.cuInit(0)
    failure = "" if error in (0, NO_DEVICE) else f"cuInit: {_error(library, error)}"
    return Machine(() if error else _cards(library), driver, cuda, _file("libcuda.so"), failure, on_the_bus)


def _cards(library: ctypes.CDLL) -> tuple[Card, ...]:
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    cards = []
    for device in range(count.value):
        name, values = ctypes.create_string_buffer(128), (ctypes.c_int(), ctypes.c_int())
        library.cuDeviceGetName(name, len(name), device)
        for value, attribute in zip(values, ATTRIBUTES, strict=True):
            library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        cards.append(Card(name.value.decode(errors="replace"), (values[0].value, values[1].value)))
    return tuple(cards)


def _error(library: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorString(code, ctypes.byref(text))
    return text.value.decode() if text.value else f"error {code}"


def _driver_version() -> str:
    """Return the version that NVML has; it is not known if library and kernel module are of different versions."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    text = ctypes.create_string_buffer(96)
    if library.nvmlInit_v2() or library.nvmlSystemGetDriverVersion(text, len(text)):
        return ""
    return text.value.decode(errors="replace")


def _file(name: str) -> str:
    """Return the file of a library that this process has loaded."""
    found = re.search(rf"\s(/\S*{re.escape(name)}\S*)", Path("/proc/self/maps").read_text())
    return os.path.realpath(found[1]) if found else ""


def _is_gpu(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
    except OSError:
        return False
    return vendor.strip() == NVIDIA and kind.startswith(DISPLAY_CONTROLLER)


def main() -> None:
    """Print the lock of this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("asked", nargs="?", default="auto", choices=["auto", "cpu", "gpu"])
    cuda = cuda_of((Path(__file__).parent / "gpu.txt").read_text())
    choice = choose(this_machine(), cuda, parser.parse_args().asked)
    sys.stderr.write(f"make setup: {choice.why}\n")
    if choice.lock is None:
        sys.exit(1)
    sys.stdout.write(f"{choice.lock}\n")


if __name__ == "__main__":
    main()
