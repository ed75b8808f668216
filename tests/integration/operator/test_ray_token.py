"""Ray's token authentication, as the pods of a job have it: a real head, the operator's client, and a stranger."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from local_cluster.ports import free_port
from rljob_api.control import ray_token
from rljob_operator.drivers.driver_api import DriverUnreachableError, RayJobs, open_session
from rljob_operator.job import pods
from rljob_operator.world.driver_news import RayAnswer
from rljob_operator.world.world import ENDED, DriverState
from support.waiting import eventually

TOKEN = "a token of more than twenty characters"
TRIES = 3
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    """Start a head with the variables of a pod; gives the URL of its Ray Jobs API.

    On a busy machine Ray's client server gives up after 30 s, and the whole head ends with it. Another one is then
    started.
    """
    for _ in range(TRIES):
        with started_head() as url:
            if url is not None:
                yield url
                return
    pytest.fail(f"{TRIES} heads have ended while they started")


@contextmanager
def started_head() -> Iterator[str | None]:
    """Start a head; gives the URL of its Ray Jobs API once all of it serves, or None if it has ended."""
    mode, token = pods.ray_authentication("secret", "key")
    environ = {**os.environ, mode["name"]: mode["value"], token["name"]: ray_token(TOKEN)}
    api, client = free_port(), free_port()
    ports = {"port": free_port(), "dashboard-port": api, "dashboard-agent-listen-port": free_port()}
    ports["ray-client-server-port"] = client
    with TemporaryDirectory(prefix="ray", dir="/tmp") as directory:  # Ray's sockets need short paths
        options = [*(f"--{name}={port}" for name, port in ports.items()), f"--temp-dir={directory}", "--num-cpus=1"]
        command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", *options]
        log = Path(directory, "start.log")
        with log.open("wb") as output:
            more = ["--num-gpus=0", "--object-store-memory=100000000", "--disable-usage-stats"]
            process = subprocess.Popen([*command, *more], stdout=output, stderr=output, env=environ, process_group=0)
        url = f"http://127.0.0.1:{api}"
        asked = f"{url}/api/jobs/", f"Bearer {ray_token(TOKEN)}"

        def serves() -> bool:
            return status_of(*asked) == 200 and listens(client)

        try:
            eventually(lambda: process.poll() is not None or serves(), bool, 240)
            yield url if process.poll() is None else None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def listens(port: int) -> bool:
    """Return whether something accepts connections at a port of this machine."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def status_of(url: str, authorization: str = "") -> int:
    """Return the HTTP status of a GET; 0: no answer."""
    try:
        with NO_PROXY.open(urllib.request.Request(url, headers={"Authorization": authorization}), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.mark.parametrize(
    ("authorization", "status"),
    [("", 401), ("Bearer of-something-else-that-is-long", 403), (f"Bearer {ray_token(TOKEN)}", 200)],
)
def test_ray_lets_in_nobody_without_the_job_s_token(head: str, authorization: str, status: int) -> None:
    assert status_of(f"{head}/api/jobs/", authorization) == status


def test_an_operator_without_the_token_is_told_so(head: str) -> None:
    async def look() -> RayAnswer:
        async with open_session() as session:
            return await RayJobs(session, head, "another token").look("x")

    with pytest.raises(DriverUnreachableError, match="403 Forbidden: Invalid authentication token"):
        asyncio.run(look())


@pytest.mark.timeout(900)
def test_the_operator_starts_a_driver(head: str) -> None:
    """Ray runs it by an actor, so the processes of the cluster accept each other, too."""

    async def look() -> RayAnswer:
        async with open_session() as session:
            jobs = RayJobs(session, head, TOKEN)
            try:
                answer = await jobs.look("driver")
                if answer.state is DriverState.ABSENT:
                    await jobs.submit("driver", "true")
            except DriverUnreachableError as error:  # Ray's agent is still starting, or the machine is busy
                return RayAnswer(DriverState.UNKNOWN, message=str(error))
            return answer

    answer = eventually(lambda: asyncio.run(look()), lambda answer: answer.state in ENDED, 480, poll_s=1.0)
    assert answer.state is DriverState.SUCCEEDED, answer.message
