"""What is carried to another machine: files divided over folders, packages of the locks, libraries of programs."""

import pytest

from local_cluster.carried_packages import LEFT_OUT, LOCKS, carried, names_in
from local_cluster.carried_programs import libraries
from local_cluster.chunks import CHUNK, FOLDER, folders
from local_cluster.errors import ClusterError
from local_cluster.project_images import REPOSITORY

LDD = """\
\tlinux-vdso.so.1 (0x00007ffd5a5f6000)
\tlibseccomp.so.2 => /lib/x86_64-linux-gnu/libseccomp.so.2 (0x00007f0a3c2b1000)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f0a3c0d0000)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f0a3c300000)
"""
LOCK = """\
# made by `make lock`
ray[default]==2.60.0 \\
    --hash=sha256:1
torch==2.11.0 ; sys_platform == 'linux' \\
    --hash=sha256:2
"""


def test_folders_hold_all_files_and_none_is_too_full() -> None:
    sizes = {"a.00": 40, "a.01": 5, "b.00": 40, "b.01": 30, "c.00": 10, "zstd": 2}
    made = folders(sizes, first=["zstd"], most=47)
    assert sorted(name for folder in made for name in folder) == sorted(sizes)
    assert max(sum(sizes[name] for name in folder) for folder in made) <= 47
    assert "zstd" in made[0]
    assert len(made) == 3


def test_a_file_that_fits_into_no_folder_is_named() -> None:
    with pytest.raises(ValueError, match=r"a\.00: 50 bytes, and a folder holds 47"):
        folders({"a.00": 50, "b.00": 1}, most=47)


def test_the_largest_chunk_fits_into_a_folder() -> None:
    assert CHUNK < FOLDER


def test_packages_that_the_machine_has_are_not_carried() -> None:
    assert [*carried([LOCK, "yarl==1.0 \\\n    --hash=sha256:3\n"], ["torch"])] == [
        "ray[default]==2.60.0 \\\n    --hash=sha256:1\n",
        "yarl==1.0 \\\n    --hash=sha256:3\n",
    ]


def test_a_package_that_no_lock_has_cannot_be_left_out() -> None:
    with pytest.raises(ClusterError, match="leaves out tensorflow, which no lock has"):
        carried([LOCK], ["tensorflow"])


def test_what_is_left_out_is_in_the_locks_and_the_trainer_is_carried() -> None:
    locks = [(REPOSITORY / f"requirements/{lock}.txt").read_text() for lock in LOCKS]
    names = {entry.partition("==")[0] for entry in carried(locks, names_in(LEFT_OUT.read_text()))}
    assert {"sglang", "megatron-core", "ray", "kubernetes", "cryptography"} <= {name.split("[")[0] for name in names}
    assert not {"torch", "triton", "nvidia-nccl-cu13"} & names


def test_libraries_are_those_that_not_every_machine_has() -> None:
    assert libraries(LDD) == {"libseccomp.so.2": "/lib/x86_64-linux-gnu/libseccomp.so.2"}


def test_a_library_that_is_missing_here_is_named() -> None:
    with pytest.raises(ClusterError, match=r"libmnl\.so\.0 is missing"):
        libraries("\tlibmnl.so.0 => not found\n")
