"""Whether engines on a GPU keep FP8 weights as they are published. Pure.

For some GPUs SGLang changes the weights of linear layers, or their scales, after it has loaded them. They then differ
from what the learner published, and no publication can be verified. Source: SGLang 0.5.17, `Fp8Config`,
`Fp8LinearMethod`, `Fp8MoEMethod`, `can_auto_enable_marlin_fp8`, `requant_block_scale_ue8m0_for_deepgemm`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rljob_api.errors import Problem
from rljob_api.sections import Device, Quantization, Spec

FIELD: Final = "spec.rollout.quantization"
FIRST: Final = (8, 0)
"""compute capability of the first GPUs on which SGLang takes FP8 weights"""
WITH_FP8: Final = (8, 9)
"""compute capability of the first GPUs that multiply FP8 numbers: Ada; before them SGLang takes Marlin"""
ROUNDING: Final = 10
"""major compute capability of GPUs for which DeepGEMM takes scales that are powers of two (UE8M0): B200, B300, GB200"""
GEMM, EXPERTS = "fp8-gemm-backend", "moe-runner-backend"
ARCHITECTURES: Final = (
    ((12, 0), "Blackwell"),
    ((11, 0), "Blackwell"),
    ((10, 0), "Blackwell"),
    ((9, 0), "Hopper"),
    (WITH_FP8, "Ada"),
    (FIRST, "Ampere"),
    ((7, 5), "Turing"),
    ((7, 0), "Volta"),
)
"""of GPUs from a compute capability on, newest first"""
MAJOR, MINOR = "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor"
FAMILY = "nvidia.com/gpu.family"
FAMILIES: Final = {"ampere": FIRST, "turing": (7, 5), "volta": (7, 0)}
"""values of FAMILY without FP8, with their first compute capability; NVIDIA's GPU feature discovery labels nodes so"""


@dataclass(frozen=True, slots=True)
class EngineGpu:
    """A GPU that an engine will be on, and what SGLang finds on its machine."""

    name: str
    """as the driver calls it: `NVIDIA A100-SXM4-80GB`"""
    capability: tuple[int, int]
    """CUDA compute capability, major and minor"""
    deep_gemm: bool = False
    """whether SGLang finds DeepGEMM there, and SGLANG_ENABLE_JIT_DEEPGEMM does not turn it off"""
    marlin: bool = False
    """whether SGLANG_FORCE_FP8_MARLIN is on"""

    def __str__(self) -> str:
        major, minor = self.capability
        family = next((name for first, name in ARCHITECTURES if self.capability >= first), "older than Volta")
        return f"{self.name} ({family}, compute capability {major}.{minor})"


def matters(spec: Spec) -> bool:
    """Return whether engines on GPUs get FP8 weights of a learner, which they must keep."""
    quantised = spec.rollout.quantization is Quantization.FP8
    return quantised and spec.has_engines and spec.debug.learner and spec.runtime.device is Device.GPU


def problem(spec: Spec, gpu: EngineGpu) -> Problem | None:
    """Return why engines of this job would not keep published weights on a GPU; None: they do."""
    if not matters(spec):
        return None
    if gpu.capability < FIRST:
        rule = f"needs engines on GPUs of compute capability 8.0 or more, and one is on {gpu}"
        return refusal(spec, rule, "leave it out")
    if gpu.marlin or gpu.capability < WITH_FP8:
        rule = f"cannot be verified on {gpu}: there SGLang lays weights out anew for its Marlin kernel, and engines"
        without = "without SGLANG_FORCE_FP8_MARLIN in spec.runtime.env, or "
        other = "leave it out, or engines on GPUs of compute capability 8.9 or 9.0"
        return refusal(spec, f"{rule} do not hold what is published", without + other if gpu.marlin else other)
    if gpu.capability[0] != ROUNDING or not gpu.deep_gemm:
        return None
    if changes := rounded(spec):
        rule = f"cannot be verified on {gpu}: there SGLang rounds scales to powers of two for DeepGEMM, and engines"
        nearest = " and ".join(f"spec.extraArgs.sglang.{name} {value}" for name, value in changes.items())
        return refusal(spec, f"{rule} do not hold what is published", f"{nearest} as well")
    return None


def selected(labels: Mapping[str, str]) -> EngineGpu | None:
    """Return the GPU that a nodeSelector asks for; None: it leaves open what matters."""
    if labels.get(MAJOR, "").isdecimal() and labels.get(MINOR, "").isdecimal():
        name = f"nodes with {MAJOR} {labels[MAJOR]} and {MINOR} {labels[MINOR]}"
        return EngineGpu(name, (int(labels[MAJOR]), int(labels[MINOR])))
    family = labels.get(FAMILY, "")
    return EngineGpu(f"nodes with {FAMILY} {family}", FAMILIES[family]) if family in FAMILIES else None


def refusal(spec: Spec, rule: str, nearest: str) -> Problem:
    return Problem(FIELD, spec.rollout.quantization, rule, nearest)


def rounded(spec: Spec) -> dict[str, str]:
    """Return the arguments of SGLang by which DeepGEMM rounds scales, with values by which it does not."""
    given = spec.extra_args.sglang
    changes = {
        GEMM: given.get(GEMM, "auto") in ("auto", "deep_gemm"),
        EXPERTS: given.get(EXPERTS) == "deep_gemm",
    }
    return {name: "triton" for name, holds in changes.items() if holds}
