"""What nodes are built of: GPUs divided over them, files of the machine, and what the device plugin answers."""

import io
import tarfile
from pathlib import Path

import pytest

from local_cluster import device_plugin
from local_cluster.device_plugin import MESSAGE, allocation, devices
from local_cluster.errors import ClusterError
from local_cluster.gpus import CountedGpus, MachineGpus, divided, indexes_of
from local_cluster.hardware import Hardware, read_hardware, write_hardware
from local_cluster.machine_files import MachineFiles, NoFiles, needed, specification
from local_cluster.machine_image import copy_code, layer, variables_of
from local_cluster.packages import NODE_PACKAGES, PACKAGES

USUAL = {
    "process": {"args": ["sh"], "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]},
    "mounts": [{"destination": "/proc"}, {"destination": "/run"}],
    "root": {"path": "rootfs"},
}


@pytest.mark.parametrize(
    ("gpus", "nodes", "of_nodes"),
    [
        ((0, 1, 2, 3), 2, ((0, 1), (2, 3))),
        ((0, 1, 2), 2, ((0,), (1, 2))),
        ((4, 6), 2, ((4,), (6,))),
        ((0, 1), 1, ((0, 1),)),
    ],
)
def test_gpus_are_divided_over_nodes(gpus: tuple[int, ...], nodes: int, of_nodes: tuple[tuple[int, ...], ...]) -> None:
    assert divided(gpus, nodes) == of_nodes


def test_a_node_without_a_gpu_is_refused() -> None:
    with pytest.raises(ClusterError, match="1 GPUs for 2 nodes: each needs one; start 1 nodes"):
        divided((0,), 2)


def test_indexes_are_read_from_a_list() -> None:
    assert indexes_of("3,1") == (1, 3)
    with pytest.raises(ClusterError, match=r"GPUS=0,a: 'a' is no index of a GPU; an example is GPUS=0,1"):
        indexes_of("0,a")


def test_hardware_is_kept_with_the_cluster(tmp_path: Path) -> None:
    assert read_hardware(tmp_path) == Hardware()
    chosen = Hardware(((0, 1), (2, 3)), ("/usr", "/opt"))
    write_hardware(tmp_path, chosen)
    assert read_hardware(tmp_path) == chosen
    assert chosen.parts(2).gpus == MachineGpus((2, 3))
    assert chosen.parts(2).files == MachineFiles(("/usr", "/opt"))


def test_a_node_pretends_to_have_gpus_unless_it_is_given_some() -> None:
    assert Hardware().parts(1).gpus == CountedGpus(8)
    assert Hardware().parts(1).files == NoFiles()
    assert len(Hardware().parts(1).guards) == 1


def test_nodes_with_the_machines_files_need_nothing_that_builds_images() -> None:
    assert Hardware(((0,),), ("/usr",)).packages == NODE_PACKAGES
    assert set(PACKAGES) - set(NODE_PACKAGES) == {"buildah", "busybox-static", "debootstrap"}
    assert Hardware().packages == PACKAGES


def test_containers_see_directories_read_only_and_keep_their_own_run() -> None:
    made = specification(USUAL, ["/usr", "/opt"], 20_000)
    assert made["process"] == {
        "args": ["sh"],
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 20_000, "soft": 20_000}],
    }
    assert made["mounts"] == [
        {"destination": "/proc"},
        {"destination": "/opt", "source": "/opt", "type": "bind", "options": ["bind", "ro"]},
        {"destination": "/usr", "source": "/usr", "type": "bind", "options": ["bind", "ro"]},
    ]
    assert made["root"] == USUAL["root"]


def test_only_what_is_outside_of_the_system_is_seen_in_addition() -> None:
    paths = ["/opt/torch/.venv", "/root/python/lib/site-packages", "/root/python", "/usr/lib/python3"]
    assert needed(paths) == ("/usr", "/opt", "/root/python")


def test_containers_have_the_machines_settings_of_cuda_and_its_programs_after_their_python() -> None:
    environ = {
        "PATH": "/bin",
        "NCCL_DEBUG": "INFO",
        "CUDA_HOME": "/usr/local/cuda",
        "CUDA_VISIBLE_DEVICES": "1",
        "HOME": "/root",
    }
    assert variables_of(environ, "/opt/venv", has_driver=True) == {
        "PYTHONUNBUFFERED": "1",
        "NCCL_DEBUG": "INFO",
        "CUDA_HOME": "/usr/local/cuda",
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/usr/local/nvidia/lib",
        "PATH": "/opt/venv/bin:/bin:/usr/local/nvidia/bin",
    }


def test_the_image_has_settings_and_mount_points_and_no_secrets() -> None:
    with tarfile.open(fileobj=io.BytesIO(layer({"A": "b"}))) as tar:
        found = {entry.name: entry for entry in tar.getmembers()}
        profile = tar.extractfile("etc/profile.d/rljob.sh")
        assert profile is not None and profile.read() == b'export A="b"\n'
    assert found["bin"].linkname == "usr/bin"
    assert found["tmp"].mode == 0o1777
    assert found["home/rljob"].uid == 10001
    assert "etc/shadow" not in found
    assert all(entry.mode & 0o004 for entry in found.values() if entry.isfile())


def test_the_plugin_offers_each_gpu() -> None:
    assert [device.ID for device in devices(["0", "3"]).devices] == ["gpu-0", "gpu-3"]


def test_a_container_gets_the_files_of_its_gpus_and_the_driver() -> None:
    there = {Path(path) for path in ("/dev/nvidia3", "/dev/nvidia0", "/dev/nvidiactl", "/usr/local/nvidia")}
    request = MESSAGE["AllocateRequest"]()
    request.container_requests.add(devices_ids=["gpu-3"])
    (given,) = allocation(request, exists=there.__contains__).container_responses
    assert [each.host_path for each in given.devices] == ["/dev/nvidia3", "/dev/nvidiactl"]
    assert {each.permissions for each in given.devices} == {"rw"}
    assert [(each.container_path, each.read_only) for each in given.mounts] == [("/usr/local/nvidia", True)]
    assert [(each.key, each.value) for each in given.envs] == [("NVIDIA_VISIBLE_DEVICES", "3")]


def test_messages_have_the_kubelets_numbers_of_fields() -> None:
    request = device_plugin.MESSAGE["RegisterRequest"](version="v1beta1", endpoint="s", resource_name="r")
    assert request.SerializeToString() == b"\x0a\x07v1beta1\x12\x01s\x1a\x01r"


def test_the_code_that_containers_see_is_the_checkouts_and_has_a_version(tmp_path: Path) -> None:
    copy_code(tmp_path / "code")
    assert (tmp_path / "code/trainer/rljob_trainer/driver.py").exists()
    (note,) = tmp_path.glob("code/crds/rljob-*.dist-info/METADATA")
    assert "Name: rljob\nVersion: 0." in note.read_text()
    assert not [path for path in (tmp_path / "code").rglob("*") if not path.stat().st_mode & 0o004]
