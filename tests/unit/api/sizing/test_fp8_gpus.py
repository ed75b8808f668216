"""Which GPUs let an engine keep FP8 weights as they are published."""

import pytest
import yaml

from rljob_api.errors import ManifestError
from rljob_api.reading.manifest import parse
from rljob_api.sizing.fp8_gpus import FAMILY, MAJOR, MINOR, EngineGpu, matters, problem, selected

A100 = EngineGpu("NVIDIA A100-SXM4-80GB", (8, 0))
B200 = EngineGpu("NVIDIA B200", (10, 0), deep_gemm=True)


def spec(good, sglang=None, quantization="Fp8", **sections):
    content = yaml.safe_load(good)
    content["spec"]["rollout"] |= {"quantization": quantization} if quantization else {}
    content["spec"] |= {"extraArgs": {"sglang": sglang or {}}} | sections
    return parse(content).spec


@pytest.mark.parametrize(
    ("capability", "deep_gemm"),
    [((8, 9), True), ((9, 0), True), ((11, 0), True), ((12, 0), True), ((12, 1), True), ((10, 0), False)],
)
def test_gpus_with_fp8_keep_weights_and_scales(good, capability, deep_gemm):
    assert problem(spec(good), EngineGpu("NVIDIA GPU", capability, deep_gemm)) is None


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 7)])
def test_gpus_without_fp8_lay_weights_out_anew_whatever_the_backend(good, capability):
    gpu = EngineGpu("NVIDIA A10G", capability)
    for sglang in ({}, {"fp8-gemm-backend": "triton"}):
        (said,) = [str(problem(spec(good, sglang), gpu))]
        assert said == (
            'spec.rollout.quantization: "Fp8" cannot be verified on NVIDIA A10G (Ampere, compute capability 8.'
            f"{capability[1]}): there SGLang lays weights out anew for its Marlin kernel, and engines do not hold what "
            "is published; nearest valid: leave it out, or engines on GPUs of compute capability 8.9 or 9.0"
        )


@pytest.mark.parametrize(
    ("capability", "family"), [((7, 5), "Turing"), ((7, 0), "Volta"), ((6, 1), "older than Volta")]
)
def test_older_gpus_are_refused_as_sglang_refuses_them(good, capability, family):
    said = str(problem(spec(good), EngineGpu("Tesla", capability)))

    assert said == (
        'spec.rollout.quantization: "Fp8" needs engines on GPUs of compute capability 8.0 or more, and one is on '
        f"Tesla ({family}, compute capability {capability[0]}.{capability[1]}); nearest valid: leave it out"
    )


def test_marlin_may_be_forced_on_any_gpu(good):
    found = problem(spec(good), EngineGpu("NVIDIA H100 80GB HBM3", (9, 0), marlin=True))

    assert found is not None and "(Hopper, compute capability 9.0)" in found.rule and "Marlin" in found.rule
    assert found.nearest == (
        "without SGLANG_FORCE_FP8_MARLIN in spec.runtime.env, or leave it out, or engines on GPUs of compute "
        "capability 8.9 or 9.0"
    )


@pytest.mark.parametrize("capability", [(10, 0), (10, 3)])
def test_deep_gemm_rounds_scales_on_blackwell(good, capability):
    said = str(problem(spec(good), EngineGpu("NVIDIA B200", capability, deep_gemm=True)))

    assert said == (
        'spec.rollout.quantization: "Fp8" cannot be verified on NVIDIA B200 (Blackwell, compute capability 10.'
        f"{capability[1]}): there SGLang rounds scales to powers of two for DeepGEMM, and engines do not hold what "
        "is published; nearest valid: spec.extraArgs.sglang.fp8-gemm-backend triton as well"
    )


GEMM, EXPERTS = "spec.extraArgs.sglang.fp8-gemm-backend triton", "spec.extraArgs.sglang.moe-runner-backend triton"
TRITON = {"fp8-gemm-backend": "triton"}


@pytest.mark.parametrize(
    ("sglang", "nearest"),
    [
        ({"fp8-gemm-backend": "auto"}, f"{GEMM} as well"),
        ({"fp8-gemm-backend": "deep_gemm"}, f"{GEMM} as well"),
        (TRITON, None),
        ({"fp8-gemm-backend": "flashinfer_trtllm"}, None),
        (TRITON | {"moe-runner-backend": "deep_gemm"}, f"{EXPERTS} as well"),
        ({"moe-runner-backend": "deep_gemm"}, f"{GEMM} and {EXPERTS} as well"),
    ],
)
def test_other_kernels_keep_the_scales_on_blackwell(good, sglang, nearest):
    found = problem(spec(good, sglang), B200)

    assert (found and found.nearest) == nearest


@pytest.mark.parametrize(
    ("quantization", "sections", "judged"),
    [
        ("Fp8", {}, True),
        (None, {}, False),
        ("Fp8", {"debug": {"rolloutOnly": True}}, False),
        ("Fp8", {"debug": {"replay": "runs/other/rollouts"}}, False),
        ("Fp8", {"runtime": {"device": "Cpu"}}, False),
    ],
)
def test_only_published_weights_on_gpus_are_judged(good, quantization, sections, judged):
    given = spec(good, quantization=quantization, **sections)

    assert matters(given) is judged
    assert (problem(given, A100) is not None) is judged


@pytest.mark.parametrize(
    ("labels", "capability"),
    [
        ({MAJOR: "8", MINOR: "6"}, (8, 6)),
        ({MAJOR: "9", MINOR: "0", FAMILY: "ampere"}, (9, 0)),
        ({FAMILY: "ampere"}, (8, 0)),
        ({FAMILY: "turing"}, (7, 5)),
        ({FAMILY: "volta"}, (7, 0)),
        ({FAMILY: "hopper"}, None),
        ({MAJOR: "8"}, None),
        ({MINOR: "0"}, None),
        ({MAJOR: "eight", MINOR: "0"}, None),
        ({"kubernetes.io/arch": "amd64"}, None),
    ],
)
def test_labels_of_nodes_may_say_which_gpus_are_asked_for(labels, capability):
    found = selected(labels)

    assert (found and found.capability) == capability


AMPERE, HOPPER = {"nodeSelector": {FAMILY: "ampere"}}, {"nodeSelector": {MAJOR: "9", MINOR: "0"}}


@pytest.mark.parametrize(
    ("sections", "refused"),
    [
        ({"scheduling": AMPERE}, True),
        ({"scheduling": HOPPER}, False),
        ({"pods": {"trainer": AMPERE}}, True),
        ({"pods": {"rollout": AMPERE}, "placement": "Disaggregated"}, True),
        ({"pods": {"trainer": AMPERE}, "placement": "Disaggregated"}, False),
        ({"scheduling": AMPERE, "pods": {"trainer": HOPPER}}, False),
        ({"scheduling": AMPERE, "debug": {"rolloutOnly": True}}, False),
    ],
)
def test_a_job_that_asks_for_nodes_without_fp8_is_refused_by_its_manifest(good, sections, refused):
    try:
        spec(good, **sections)
    except ManifestError as error:
        (found,) = error.problems
        assert refused and found.field == "spec.rollout.quantization"
        assert "nodes with nvidia.com/gpu.family ampere (Ampere, compute capability 8.0)" in str(found)
    else:
        assert not refused
