"""Ray's own processes: one that is gone for long ends the run, one that is just gone or another program does not."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rljob_cli.run.ray_processes import RayProcesses


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def child(directory: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a child of this process under this name."""
    program = directory / name
    sleep = shutil.which("sleep")
    assert sleep is not None
    program.symlink_to(sleep)
    with subprocess.Popen([program, "600"]) as process:
        try:
            yield process
        finally:
            process.kill()


def after(ray: RayProcesses, clock: Clock, seconds: float) -> str | None:
    clock.now += seconds
    return ray.lost(patience_s=10.0)


def test_a_lost_raylet_is_named_after_the_patience_and_not_before(tmp_path: Path):
    clock = Clock()
    ray = RayProcesses(os.getpid(), 1.0, clock)
    with child(tmp_path, "raylet") as raylet:
        assert after(ray, clock, 0.0) is None
        raylet.kill()
        raylet.wait()
        assert [after(ray, clock, seconds) for seconds in (1.0, 9.0)] == [None, None]
        assert after(ray, clock, 1.0) == f"raylet (pid {raylet.pid})"


def test_other_children_may_come_and_go(tmp_path: Path):
    clock = Clock()
    ray = RayProcesses(os.getpid(), 1.0, clock)
    with child(tmp_path, "engine") as engine:
        after(ray, clock, 0.0)
        engine.kill()
        engine.wait()
        assert [after(ray, clock, 20.0) for _ in range(3)] == [None, None, None]


def test_a_zombie_is_gone(tmp_path: Path):
    clock = Clock()
    ray = RayProcesses(os.getpid(), 1.0, clock)
    with child(tmp_path, "gcs_server") as server:
        after(ray, clock, 0.0)
        server.kill()
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        after(ray, clock, 1.0)
        assert after(ray, clock, 10.0) == f"gcs_server (pid {server.pid})"


def test_the_processes_are_looked_at_once_in_an_interval(tmp_path: Path):
    clock = Clock()
    ray = RayProcesses(os.getpid(), 5.0, clock)
    with child(tmp_path, "raylet") as raylet:
        after(ray, clock, 0.0)
        raylet.kill()
        raylet.wait()
        after(ray, clock, 5.0)
        after(ray, clock, 10.0)
        assert after(ray, clock, 4.0) is None


def test_a_driver_that_is_gone_has_no_vital_processes():
    assert RayProcesses(2**22 + 1, 1.0, Clock()).lost() is None
