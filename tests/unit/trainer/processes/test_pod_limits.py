"""Cores and memory of a pod are those of its machine, less what its limits forbid."""

from pathlib import Path

import pytest

from rljob_trainer.processes.pod_limits import cores, memory_bytes

MEMINFO = "MemTotal:       33554432 kB\nMemFree:        1024 kB\n"


def cgroup(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        file = directory / name.replace("__", "/").replace("_of_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return directory


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, 8),
        ({"cpu_of_max": "max 100000\n"}, 8),
        ({"cpu_of_max": "300000 100000\n"}, 3),
        ({"cpu_of_max": "250000 100000\n"}, 3),
        ({"cpu_of_max": "10000 100000\n"}, 1),
        ({"cpu_of_max": "6400000 100000\n"}, 8),
        ({"cpu__cpu_of_cfs_quota_us": "-1\n", "cpu__cpu_of_cfs_period_us": "100000\n"}, 8),
        ({"cpu__cpu_of_cfs_quota_us": "400000\n", "cpu__cpu_of_cfs_period_us": "100000\n"}, 4),
    ],
)
def test_a_limit_of_time_is_a_number_of_cores(tmp_path: Path, files: dict[str, str], found: int):
    assert cores(8, cgroup(tmp_path, **files)) == found


def test_there_is_at_least_one_core_and_here_not_more_than_the_scheduler_gives():
    assert cores(0) == 1
    assert 1 <= cores() <= 4096


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, 32 << 30),
        ({"memory_of_max": "max\n"}, 32 << 30),
        ({"memory_of_max": f"{3 << 30}\n"}, 3 << 30),
        ({"memory__memory_of_limit_in_bytes": "9223372036854771712\n"}, 32 << 30),
        ({"memory__memory_of_limit_in_bytes": f"{5 << 30}\n"}, 5 << 30),
    ],
)
def test_memory_is_that_of_the_machine_or_of_the_limit(tmp_path: Path, files: dict[str, str], found: int):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    assert memory_bytes(meminfo, cgroup(tmp_path, **files)) == found
