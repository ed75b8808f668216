"""Reads what SGLang decides the layout of FP8 weights by: the GPU of this machine, its kernels, its environment."""

import importlib.util
import logging
from collections.abc import Callable, Mapping

import pynvml

from rljob_api.sizing.fp8_gpus import EngineGpu
from rljob_trainer.gpus.nvml import Library, device_of

log = logging.getLogger(__name__)

OFF = ("false", "0", "no", "n")
"""what turns SGLANG_ENABLE_JIT_DEEPGEMM off; SGLang 0.5.17, environ.EnvBool"""
ON = ("true", "1")
"""what turns SGLANG_FORCE_FP8_MARLIN on; SGLang 0.5.17, get_bool_env_var"""


def has_deep_gemm() -> bool:
    """Return whether the package of DeepGEMM is installed; importing it would take the GPU."""
    return importlib.util.find_spec("deep_gemm") is not None


def engine_gpu(
    name: str,
    environ: Mapping[str, str],
    library: Library = pynvml,
    installed: Callable[[], bool] = has_deep_gemm,
) -> EngineGpu | None:
    """Return the GPU `name` (index or UUID) of this machine; None where NVML does not know it."""
    try:
        library.nvmlInit()
        device = device_of(library, name)
        said = library.nvmlDeviceGetName(device)
        major, minor = library.nvmlDeviceGetCudaComputeCapability(device)
    except library.NVMLError as error:
        log.warning("action=read_gpu gpu=%s outcome=unknown reason=%s", name, error)
        return None
    return EngineGpu(
        said.decode() if isinstance(said, bytes) else said,
        (int(major), int(minor)),
        deep_gemm=environ.get("SGLANG_ENABLE_JIT_DEEPGEMM", "true").lower() not in OFF and installed(),
        marlin=environ.get("SGLANG_FORCE_FP8_MARLIN", "false").lower() in ON,
    )
