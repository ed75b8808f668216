"""What of a machine decides how SGLang lays FP8 weights out."""

import importlib.util
import logging
from typing import Any

import pynvml
import pytest

from rljob_api.sizing.fp8_gpus import EngineGpu
from rljob_trainer.gpus.capability import engine_gpu, has_deep_gemm

H100 = EngineGpu("NVIDIA H100 80GB HBM3", (9, 0))


class Library:
    """NVML with one GPU, that has index 0 and one UUID, and a part of it."""

    NVMLError = pynvml.NVMLError

    def __init__(self, says: str | bytes = H100.name, loads: bool = True) -> None:
        self._says, self._loads = says, loads

    def nvmlInit(self) -> None:
        if not self._loads:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return "whole"

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:
        return "part" if name.startswith("MIG-") else "whole"

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        if handle != "part":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return "whole"

    def nvmlDeviceGetName(self, handle: str) -> str | bytes:
        return self._says if handle == "whole" else "a part"

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> tuple[int, int]:
        return (9, 0) if handle == "whole" else (0, 0)


def read(name: str = "0", environ: dict[str, str] | None = None, installed: bool = False, **named: Any) -> Any:
    return engine_gpu(name, environ or {}, Library(**named), lambda: installed)


@pytest.mark.parametrize("name", ["0", "GPU-7", "MIG-7"])
def test_a_gpu_has_a_name_and_a_compute_capability(name: str) -> None:
    assert read(name) == H100
    assert read(name, says=b"NVIDIA H100 80GB HBM3") == H100


@pytest.mark.parametrize(
    ("said", "found"),
    [(None, True), ("true", True), ("1", True), ("False", False), ("0", False), ("no", False), ("n", False)],
)
def test_deep_gemm_is_found_where_it_is_installed_and_not_turned_off(said: str | None, found: bool) -> None:
    environ = {} if said is None else {"SGLANG_ENABLE_JIT_DEEPGEMM": said}

    assert read(environ=environ, installed=True).deep_gemm is found
    assert read(environ=environ, installed=False).deep_gemm is False


@pytest.mark.parametrize(("said", "forced"), [(None, False), ("1", True), ("True", True), ("0", False), ("yes", False)])
def test_marlin_is_forced_by_what_sglang_takes_for_true(said: str | None, forced: bool) -> None:
    assert read(environ={} if said is None else {"SGLANG_FORCE_FP8_MARLIN": said}).marlin is forced


def test_what_nvml_does_not_know_is_no_gpu_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    assert read("3") is None
    assert read(loads=False) is None
    assert [record.getMessage().startswith("action=read_gpu gpu=") for record in caplog.records] == [True, True]


def test_a_package_that_is_there_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: asked.append(name) or object())

    assert has_deep_gemm() and asked == ["deep_gemm"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert not has_deep_gemm()
