"""The driver as `rljob run` holds it: a process of its own, that is asked over HTTP and ended by signals."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from textwrap import dedent

import pytest

from rljob_cli.run.driver import Driver, Ended, Event
from rljob_trainer.rundir.logs import AttemptLogs

SERVES = """
    import http.server, json, os, sys

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked = [self.command, self.path, self.headers["Authorization"]]
            open(sys.argv[2], "w").write(json.dumps(asked))
            self.send_response(200)
            self.end_headers()

        def do_GET(self):
            self.send_error(503)

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    address = {"pid": os.getpid(), "url": f"http://127.0.0.1:{server.server_port}"}
    open(sys.argv[1] + ".new", "w").write(json.dumps(address))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    server.serve_forever()
"""
SLEEPS = """
    import pathlib, signal, sys

    def in_a_step():
        pathlib.Path(sys.argv[1]).touch()
        signal.pause()

    in_a_step()
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str], tuple[Driver, SimpleQueue[Event]]]:
    def started(program: str) -> tuple[Driver, SimpleQueue[Event]]:
        events: SimpleQueue[Event] = SimpleQueue()
        driver = Driver(
            [sys.executable, "-c", dedent(program), str(tmp_path / "address"), str(tmp_path / "asked")],
            {"PYTHONFAULTHANDLER": "1"},
            tmp_path / "log",
            tmp_path / "address",
            "a token",
            events,
            AttemptLogs(tmp_path),
        )
        while not (tmp_path / "address").exists():
            assert not driver._ended.wait(0.02), (tmp_path / "log").read_text()
        return driver, events

    return started


def test_a_driver_is_asked_to_save_and_end_with_the_token(start, tmp_path: Path):
    driver, events = start(SERVES)
    driver.drain()
    driver.kill()

    assert json.loads((tmp_path / "asked").read_text()) == ["POST", "/v1/drain", "Bearer a token"]
    assert events.get(timeout=20) == Ended(-9)


def test_a_driver_that_hangs_ends_with_its_stacks_and_without_a_core_file(start, tmp_path: Path):
    driver, events = start(SLEEPS)
    driver.kill_with_stacks()

    assert events.get(timeout=20) == Ended(-6)
    assert "in in_a_step" in (tmp_path / "log").read_text()
    assert not list(tmp_path.glob("core*"))
