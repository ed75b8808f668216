"""One SGLang server on the machine of this process; `ray_host.py` is its handle in the driver."""

import logging
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

import ray

from rljob_trainer.engines.actor import weight_copy
from rljob_trainer.engines.command import EngineCommand
from rljob_trainer.engines.key import KEY_VARIABLE
from rljob_trainer.engines.served import EngineStartError, Served
from rljob_trainer.engines.weight_offer import WeightFiles
from rljob_trainer.processes import kernel_archive
from rljob_trainer.processes.kept_process import KeptProcess, ProcessExit
from rljob_trainer.processes.ports import free_ports

log = logging.getLogger(__name__)

READY_POLL_S = 0.25
PORT_TRIES = 3
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""a proxy of the machine is for the world outside, not for its own servers"""
IN_USE = ("address already in use", "Port is already in use", "is not available")


class EngineServer:
    """Starts, watches and stops one SGLang server. Everything blocks; nothing outlives this process."""

    def __init__(
        self, name: str, log_file: Path, host: str | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._log_file = log_file
        self._host = host or ray.util.get_node_ip_address()
        self._environment = dict(environment or {})
        self._process: KeptProcess | None = None

    def start(self, command: EngineCommand, timeout_s: float) -> Served:
        """Start the server and wait until it answers; raise EngineStartError, with nothing left running."""
        self.stop()
        started = time.monotonic()
        kernels = kernel_archive.kernels_of(os.environ, command.kernels)
        kernels.unpack()
        for attempt in range(1, PORT_TRIES + 1):
            port, nccl_port = free_ports(self._host)
            process = KeptProcess(
                command.argv(sys.executable, self._host, port, nccl_port),
                {**command.environment, **self._environment, KEY_VARIABLE: command.key},
                self._log_file,
            )
            self._process = process
            url = f"http://{self._host}:{port}"
            trouble = _wait_ready(process, url, started + timeout_s, demands_key=command.key != "")
            if trouble is None:
                kernels.pack_soon()
                return Served(url, process.pid, time.monotonic() - started)
            self.stop()
            if attempt == PORT_TRIES or not any(words in trouble for words in IN_USE):
                break
            log.info("engine=%s action=start_again reason=PortConflict port=%d", self._name, port)
        kernels.discard()
        raise EngineStartError(f"start engine {self._name}: {trouble}")

    def wait(self, timeout_s: float) -> ProcessExit | None:
        """Return how the server ended, or None when it still runs after `timeout_s` [s]."""
        assert self._process is not None, "wait before start"
        return self._process.wait(timeout_s)

    def status(self) -> tuple[int | None, ProcessExit | None]:
        """Return the server's pid (None before the first start) and how it ended (None while it runs)."""
        return (self._process.pid, self._process.exit) if self._process else (None, None)

    def stop(self) -> None:
        """Kill the server's whole tree, if there is one."""
        if self._process is not None:
            self._process.stop()

    def log_tail(self) -> str:
        """Return the last lines of the server's log."""
        return self._process.log_tail() if self._process else ""

    def apply_delta(self, files: WeightFiles, copy: Path) -> int:
        """Bring this machine's copy of the weights up to date, see `weight_copy`."""
        return weight_copy.apply_delta(files, copy)

    def copy_whole(self, files: WeightFiles, copy: Path) -> int:
        """Copy the whole weights to this machine, see `weight_copy`."""
        return weight_copy.copy_whole(files, copy)

    def actor_pid(self) -> int:
        """Return the pid of this process."""
        return os.getpid()

    def address(self) -> str:
        """Return the address of this machine."""
        return self._host


def _wait_ready(process: KeptProcess, url: str, deadline: float, demands_key: bool) -> str | None:
    """Return None when the server answers, or what is wrong with it."""
    while time.monotonic() < deadline:
        if (exit_ := process.wait(READY_POLL_S)) is not None:
            return str(exit_)
        try:
            with NO_PROXY.open(f"{url}/health", timeout=2.0):
                pass
            return "it serves requests without the key of the run" if demands_key and _serves_anybody(url) else None
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            continue
    return f"not ready in time; log:\n{process.log_tail()}"


def _serves_anybody(url: str) -> bool:
    """Return whether it answers without a key: SGLang continues without a plugin that cannot be applied."""
    try:
        with NO_PROXY.open(f"{url}/model_info", timeout=2.0):
            return True
    except urllib.error.HTTPError as error:
        return error.code != HTTPStatus.UNAUTHORIZED
