"""Whatever is killed without warning, nothing of an engine stays behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from support.processes import gone
from support.trainer import engine_driver
from support.trainer.fleet import send, shared_memory_of, tree


@dataclass
class Driver:
    process: "subprocess.Popen[bytes]"
    servers: list[int]
    actors: list[int]


@pytest.fixture
def driver(tiny_llama_dir: Path, tmp_path: Path) -> Iterator[Driver]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    process = subprocess.Popen(
        [sys.executable, engine_driver.__file__, str(tiny_llama_dir), str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout as output:
        yield Driver(process, **json.loads(output.readline()))
    process.kill()
    process.wait()


def listening(pids: list[int]) -> list[int]:
    """Return the ports that these processes listen on."""
    connections = [each for pid in pids for each in psutil.Process(pid).net_connections("tcp")]
    return [each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not holds():
        assert time.monotonic() < deadline, "not within 15 s"
        time.sleep(0.05)


def open_ports() -> set[int]:
    return {each.laddr.port for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN}


def test_killing_the_actor_or_the_driver_leaves_nothing_of_their_engines(driver: Driver) -> None:
    first, second = (tree(pid) for pid in driver.servers)
    files = shared_memory_of(first + second)
    ports = set(listening(first + second))
    assert files and ports, "there is something to leave behind"

    send(signal.SIGKILL, [driver.actors[0]])
    until(lambda: all(gone(pid) for pid in first))
    assert not gone(driver.servers[1])

    driver.process.kill()
    until(lambda: all(gone(pid) for pid in second))
    until(lambda: not any(Path(file).exists() for file in files))
    until(lambda: not ports & open_ports())
