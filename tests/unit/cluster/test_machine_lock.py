"""Which lock `make setup` takes, and what it refuses before anything is built."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from local_cluster.project_images import REPOSITORY
from machine_lock import OLDEST_CARDS, OLDEST_DRIVERS, Card, Machine, choose, cuda_of
from support.cluster.locks import pins, text

CUDA = (13, 0)
H200 = Card("NVIDIA H200", (9, 0))
GOOD = Machine((H200,), "580.159.04", (13, 0), "/usr/lib/libcuda.so.580.159.04", on_the_bus=1)
NONE = Machine()
OLD_DRIVER = replace(GOOD, driver="550.54.15", cuda=(12, 4))


@pytest.mark.parametrize(
    ("machine", "asked", "lock", "why"),
    [
        (NONE, "auto", "cpu", "no GPU of NVIDIA. Taken: the lock for CPUs"),
        (
            GOOD,
            "auto",
            "gpu",
            "1 × NVIDIA H200, driver 580.159.04 for CUDA up to 13.0. Taken: the lock for GPUs, with CUDA 13.0",
        ),
        (GOOD, "cpu", "cpu", "the lock for CPUs, as LOCK says"),
        (OLD_DRIVER, "cpu", "cpu", "the lock for CPUs, as LOCK says"),
        (
            Machine(on_the_bus=8),
            "auto",
            "cpu",
            "no GPU that programs may use, though 8 of NVIDIA on the PCI bus: install driver 580 or newer, or start "
            "the container with its GPUs. Taken: the lock for CPUs",
        ),
    ],
)
def test_a_lock_is_chosen(machine: Machine, asked: str, lock: str, why: str) -> None:
    choice = choose(machine, CUDA, asked)
    assert (choice.lock, choice.why) == (lock, why)


@pytest.mark.parametrize(
    ("machine", "asked", "why"),
    [
        (NONE, "gpu", "no GPU of NVIDIA. `make setup` without LOCK takes the lock for CPUs"),
        (
            OLD_DRIVER,
            "auto",
            "driver too old: driver 550.54.15 for CUDA up to 12.4, and the lock for GPUs has CUDA 13.0. Install driver "
            "580 or newer, or run `make setup LOCK=cpu`",
        ),
        (
            replace(GOOD, cuda=(12, 4), libcuda="/usr/local/cuda-12.4/compat/libcuda.so.550.54.15"),
            "auto",
            "wrong CUDA: /usr/local/cuda-12.4/compat/libcuda.so.550.54.15 runs CUDA 12.4 only, though the driver is "
            "580.159.04, and the lock for GPUs has CUDA 13.0. Remove the directory of that libcuda from "
            "LD_LIBRARY_PATH, or run `make setup LOCK=cpu`",
        ),
        (
            Machine(cuda=(13, 0), failure="cuInit: system has unsupported display driver / cuda driver combination"),
            "auto",
            "the driver does not start: cuInit: system has unsupported display driver / cuda driver combination. "
            "Restart the machine if its driver was upgraded, or run `make setup LOCK=cpu`",
        ),
        (
            replace(GOOD, cards=(H200, Card("Tesla V100-SXM2-16GB", (7, 0)))),
            "gpu",
            "GPU too old: Tesla V100-SXM2-16GB has compute capability 7.0, and the lock for GPUs has CUDA 13.0, which "
            "needs 7.5. Hide it with CUDA_VISIBLE_DEVICES, or run `make setup LOCK=cpu`",
        ),
    ],
)
def test_a_machine_that_cannot_run_the_lock_is_refused(machine: Machine, asked: str, why: str) -> None:
    choice = choose(machine, CUDA, asked)
    assert (choice.lock, choice.why) == (None, why)


def test_an_older_driver_with_nvidias_package_for_a_newer_cuda_is_enough() -> None:
    assert choose(replace(GOOD, driver="550.54.15", cuda=(13, 0)), CUDA).lock == "gpu"


def test_a_driver_without_a_known_version_is_judged_by_its_cuda() -> None:
    assert choose(replace(GOOD, driver=""), CUDA).lock == "gpu"
    assert choose(replace(OLD_DRIVER, driver=""), CUDA).why.startswith("driver too old: driver for CUDA up to 12.4")


def test_the_tables_know_the_cuda_of_the_lock() -> None:
    major, _ = cuda_of(text("gpu"))
    assert str(major) == pins("gpu")["cuda-toolkit"].partition(".")[0]
    assert major in OLDEST_DRIVERS and major in OLDEST_CARDS


def test_make_refuses_before_it_builds_anything(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    shutil.copytree(REPOSITORY / "requirements", tmp_path / "requirements")
    before = set(tmp_path.rglob("*"))
    hidden = os.environ | {"RLJOB_CACHE": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable}
    done = subprocess.run(
        ["make", "setup", "LOCK=gpu"], cwd=tmp_path, env=hidden, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert done.stderr.startswith("make setup: no GPU"), done.stderr
    assert set(tmp_path.rglob("*")) == before
