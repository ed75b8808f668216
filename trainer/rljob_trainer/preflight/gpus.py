"""Whether this machine has the GPUs of a run that is on it alone, before Ray and engines start for nothing."""

from collections.abc import Mapping
from typing import Any, Final

import pynvml

from rljob_api.control import RAY_ADDRESS
from rljob_api.errors import Problem
from rljob_api.sections import Device, Spec
from rljob_api.sizing.topology import topology
from rljob_trainer.preflight.findings import Findings

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
FIELD: Final = "spec.runtime.device"


def look_at_gpus(spec: Spec, environ: Mapping[str, str], library: Any = pynvml) -> Findings:
    """Return whether there are enough GPUs; of a run that uses an existing Ray nothing is known,
    for other machines may have them.
    """
    if spec.runtime.device is not Device.GPU or RAY_ADDRESS in environ:
        return Findings()
    wanted = topology(spec).gpus
    there, why = visible_gpus(environ.get(VISIBLE), library)
    if there >= wanted:
        return Findings()
    shown = f"this machine shows {there}{f' ({why})' if why else ''}"
    nearest = "a machine with more GPUs, or a cluster" if there else "Cpu, a machine with GPUs, or a cluster"
    rule = f"needs {wanted} GPU{'s' if wanted > 1 else ''}, and {shown}"
    return Findings((Problem(FIELD, str(Device.GPU), rule, nearest),))


def visible_gpus(visible: str | None, library: Any) -> tuple[int, str]:
    """Return how many GPUs programs see here, and why there are none or fewer than the machine has."""
    try:
        library.nvmlInit()
        count = int(library.nvmlDeviceGetCount())
    except library.NVMLError as error:
        return 0, f"NVIDIA's driver: {error}"
    if visible is None:
        return count, ""
    names = [name.strip() for name in visible.split(",") if name.strip()]
    seen = [name for name in names if not name.lstrip("-").isdecimal() or 0 <= int(name) < count]
    return len(seen), f"{VISIBLE}={visible}, of {count}"
