"""A run on a machine without its GPUs is refused before anything starts, with the numbers."""

import pytest

from rljob_api.reading.manifest import parse
from rljob_api.sections import Spec
from rljob_trainer.preflight.gpus import look_at_gpus
from support.operator.operator_world import raw_job


class Driver:
    """NVML with so many GPUs; None: there is no driver."""

    class NVMLError(Exception):  # NVML's name
        pass

    def __init__(self, gpus: int | None) -> None:
        self._gpus = gpus

    def nvmlInit(self) -> None:
        if self._gpus is None:
            raise self.NVMLError("NVML Shared Library Not Found")

    def nvmlDeviceGetCount(self) -> int:
        assert self._gpus is not None
        return self._gpus


def spec(device: str = "Gpu", placement: str = "Disaggregated") -> Spec:
    """Return a run that takes two GPUs for the learner, and as many for its engines if these have their own."""
    return parse(raw_job(runtime={"device": device}, placement=placement)).spec


def said(made: Spec, gpus: int | None, **environ: str) -> list[str]:
    return [str(each) for each in look_at_gpus(made, environ, Driver(gpus)).problems]


@pytest.mark.parametrize(
    ("placement", "gpus", "environ"),
    [
        ("Disaggregated", 4, {}),
        ("Colocated", 2, {}),
        ("Disaggregated", 8, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}),
        ("Colocated", 1, {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}),
        ("Disaggregated", None, {"RAY_ADDRESS": "10.0.0.1:6379"}),
    ],
)
def test_enough_gpus_are_no_problem(placement: str, gpus: int | None, environ: dict[str, str]):
    assert said(spec(placement=placement), gpus, **environ) == []


def test_a_run_on_cpus_asks_for_no_driver():
    assert said(spec("Cpu"), None) == []


@pytest.mark.parametrize(
    ("gpus", "environ", "shown"),
    [
        (None, {}, "this machine shows 0 (NVIDIA's driver: NVML Shared Library Not Found)"),
        (0, {}, "this machine shows 0; "),
        (3, {}, "this machine shows 3; "),
        (8, {"CUDA_VISIBLE_DEVICES": ""}, "this machine shows 0 (CUDA_VISIBLE_DEVICES=, of 8)"),
        (8, {"CUDA_VISIBLE_DEVICES": "-1"}, "this machine shows 0 (CUDA_VISIBLE_DEVICES=-1, of 8)"),
        (8, {"CUDA_VISIBLE_DEVICES": "0,1,9"}, "this machine shows 2 (CUDA_VISIBLE_DEVICES=0,1,9, of 8)"),
    ],
)
def test_too_few_gpus_are_refused_with_the_numbers(gpus: int | None, environ: dict[str, str], shown: str):
    (problem,) = said(spec(), gpus, **environ)
    assert problem.startswith('spec.runtime.device: "Gpu"')
    assert f"needs 4 GPUs, and {shown}" in problem
