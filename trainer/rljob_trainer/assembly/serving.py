"""The driver's HTTP servers: the control protocol and the Prometheus endpoint, from before anything can fail."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rljob_api import control
from rljob_api.sections import Spec
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.assembly.run import fail
from rljob_trainer.control.metrics_endpoint import MetricsServer
from rljob_trainer.control.server import ControlServer

log = logging.getLogger(__name__)

LAST_POLL_S = 3.0
"""longest wait for a supervisor to read the status of a run that fails at its start [s]"""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the driver listens."""

    host: str
    port: int
    """of the control protocol; 0: any free one"""
    metrics_port: int = 0
    """of the Prometheus endpoint, for a manifest that names none; 0: any free one"""


LOCAL = Address("127.0.0.1", 0)


@contextmanager
def served(foundation: Foundation, listen: Address) -> Iterator[ControlServer]:
    """Serve the control protocol; report an error in the block there and in the report, before everything stops."""
    server: ControlServer | None = None
    try:
        server = _serve(foundation, listen)
        yield server
    except Exception as error:
        fail(foundation, error)
        if server is not None:
            _wait_for_poll(server)
        raise


def metrics_port(spec: Spec, listen: Address) -> int:
    """Return the port of the Prometheus endpoint: the manifest's, if it names one."""
    return spec.runtime.metrics_port or listen.metrics_port


def _serve(foundation: Foundation, listen: Address) -> ControlServer:
    run, stack, render = foundation.background.run, foundation.stack, foundation.report.render_metrics
    token = foundation.environ.get(control.TOKEN_VARIABLE, "")
    server = ControlServer(foundation.status_store, foundation.orders, render, token)
    endpoint = MetricsServer(render)
    run(server.start(foundation.directory, listen.host, listen.port), timeout_s=30)
    stack.callback(lambda: run(server.close(), timeout_s=10))
    url = run(endpoint.start(listen.host, metrics_port(foundation.spec, listen)), timeout_s=30)
    stack.callback(lambda: run(endpoint.close(), timeout_s=10))
    log.info("action=serve metrics=%s", url)
    return server


def _wait_for_poll(server: ControlServer) -> None:
    """Wait a moment until a supervisor has read the status: this run ends before most supervisors poll."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < LAST_POLL_S and server.attendance.absent_s >= waited:
        time.sleep(0.05)
