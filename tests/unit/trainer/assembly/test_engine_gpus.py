"""Engines whose GPUs would change FP8 weights are refused before anything of a run starts."""

from collections.abc import Sequence
from typing import Any

import pytest

from rljob_api.reading.manifest import parse
from rljob_api.sections import Spec
from rljob_api.sizing.fp8_gpus import EngineGpu
from rljob_api.sizing.topology import Slot, topology
from rljob_trainer.assembly.engine_gpus import one_for_each_machine, require_kept_weights
from rljob_trainer.engines.placement import Place, Slots
from rljob_trainer.preflight import PreflightError

A100, H100 = EngineGpu("NVIDIA A100-SXM4-80GB", (8, 0)), EngineGpu("NVIDIA H100 80GB HBM3", (9, 0))


def spec(quantization: str | None = "Fp8") -> Spec:
    given: dict[str, Any] = {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "a"},
        "spec": {
            "model": {"checkpoint": "models/a"},
            "data": {"train": {"jsonl": "a.jsonl"}},
            "reward": {"kind": "Math"},
            "placement": "Disaggregated",
            "rollout": {
                "promptsPerStep": 8,
                "samplesPerPrompt": 8,
                "engines": 4,
                "gpusPerEngine": 2,
                "sampling": {"maxNewTokens": 10},
            }
            | ({"quantization": quantization} if quantization else {}),
            "training": {"steps": 1, "gpusPerNode": 4, "optimizer": {"learningRate": 1e-6}},
        },
    }
    return parse(given).spec


def placed(job: Spec) -> Slots:
    """Every node of the topology is a machine."""
    found = topology(job)
    return Slots({slot: Place(f"machine-{slot.node}", n, str(n)) for n, slot in enumerate(found.slots)}, "GPU")


def judge(job: Spec, *gpus: EngineGpu | None) -> list[tuple[Slot, ...]]:
    asked: list[tuple[Slot, ...]] = []

    def read(slots: Slots, chosen: tuple[Slot, ...]) -> Sequence[EngineGpu | None]:
        assert slots == placed(job)
        asked.append(chosen)
        return gpus

    require_kept_weights(job, topology(job), placed(job), read)
    return asked


def test_gpus_that_keep_weights_and_those_that_nobody_knows_pass() -> None:
    job = spec()
    assert judge(job, H100, None) == [one_for_each_machine(topology(job), placed(job))]


def test_a_gpu_that_changes_weights_ends_the_start_with_its_name_once() -> None:
    with pytest.raises(PreflightError) as refused:
        judge(spec(), H100, A100, A100)

    said = str(refused.value)
    assert said.startswith('spec.rollout.quantization: "Fp8" cannot be verified on NVIDIA A100-SXM4-80GB (Ampere')
    assert said.count("Ampere") == 1


def test_different_gpus_are_all_named() -> None:
    with pytest.raises(PreflightError, match=r"A100.*; spec\.rollout\.quantization.*T4"):
        judge(spec(), A100, EngineGpu("Tesla T4", (7, 5)))


def test_no_machine_is_asked_for_weights_that_are_not_quantised() -> None:
    assert judge(spec(None), A100) == []


def test_one_gpu_of_each_machine_with_engines_is_read() -> None:
    job = spec()
    found = topology(job)
    chosen = one_for_each_machine(found, placed(job))

    engines = {slot.node for engine in found.engines for slot in engine.slots}
    assert [slot.node for slot in chosen] == sorted(engines) and len(engines) > 1
    assert all(slot in {engine.slots[0] for engine in found.engines} for slot in chosen)
