"""The image for GPUs: one lock with the CPU's, and the table of its layers."""

import json

from local_cluster.gpu_image import Layer, layers, table
from local_cluster.project_images import REPOSITORY
from support.cluster.locks import pins

OTHERWISE_PINNED = {"protobuf"}
"""CUTLASS needs an older one"""


def test_cpus_and_gpus_run_the_same_versions() -> None:
    cpu, gpu = pins("trainer"), pins("gpu")
    assert {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]} == OTHERWISE_PINNED
    assert {"torch", "sglang", "megatron-core", "sglang-router", "ray", "triton"} <= gpu.keys()


def test_the_lock_for_gpus_has_the_kernels_and_nothing_that_is_left_out() -> None:
    overrides = (REPOSITORY / "requirements" / "gpu-overrides.txt").read_text().splitlines()
    left_out = {line.partition(";")[0] for line in overrides if line.endswith("sys_platform == 'never'")}
    pinned = dict(line.split("==") for line in overrides if not line.startswith("#") and ";" not in line)
    assert left_out and pinned
    assert left_out.isdisjoint(pins("gpu"))
    assert {"sglang-kernel", "flashinfer-python", "flash-attn-4"} <= pins("gpu").keys()
    assert pinned == {name: pins("gpu")[name] for name in pinned}


def test_layers_have_the_command_that_made_them_and_their_sum() -> None:
    inspected = {
        "Manifest": json.dumps({"layers": [{"size": 3 * 2**20}, {"size": 5 * 2**20}]}),
        "OCIv1": {
            "history": [
                {"created_by": "ADD base"},
                {"created_by": "ENV A=1", "empty_layer": True},
                {"created_by": "RUN  install\n torch"},
            ]
        },
    }

    found = layers(inspected)

    assert found == (Layer(3 * 2**20, "ADD base"), Layer(5 * 2**20, "RUN  install\n torch"))
    assert list(table(found)) == ["       3 MiB  ADD base", "       5 MiB  RUN install torch", "       8 MiB  in all"]
