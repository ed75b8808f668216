"""The two HTTP interfaces of a job's head: the Ray Jobs API and the driver's control protocol.

Both clients ask and translate; nothing is decided here. What fails is a DriverUnreachableError.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import ValidationError

from rljob_api.control import DRAIN, ENGINE, SCALE, STATUS, EngineOrder, Scale, Status
from rljob_operator.world import DriverState

ANSWER_S = 10.0
"""time for a request that needs no waiting [s]"""
POLL_WAIT_S = 15
"""length of one long-poll [s]"""

STATES: Mapping[str, DriverState] = {
    "PENDING": DriverState.PENDING,
    "RUNNING": DriverState.RUNNING,
    "STOPPED": DriverState.STOPPED,
    "SUCCEEDED": DriverState.SUCCEEDED,
    "FAILED": DriverState.FAILED,
}


class DriverUnreachableError(RuntimeError):
    """Ray or the driver did not answer, or refused. `DriverUnreachableError(text, status)`; status 0: no answer."""

    @property
    def status(self) -> int:
        return int(self.args[1])

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Seen:
    """What Ray says of a driver."""

    state: DriverState
    exit_code: int | None = None
    message: str = ""


class RayJobs:
    """The Ray Jobs API of one head."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def look(self, submission_id: str) -> Seen:
        """Return what Ray says of the driver with this id."""
        try:
            told = json.loads(await request(self._session, "GET", f"{self._url}/api/jobs/{submission_id}"))
        except DriverUnreachableError as error:
            # Anything between us and Ray can answer 404 too; only Ray's own words count.
            if error.status == 404 and "does not exist" in str(error):
                return Seen(DriverState.ABSENT)
            raise
        return Seen(STATES[told["status"]], told.get("driver_exit_code"), told.get("message") or "")

    async def submit(self, submission_id: str, entrypoint: str) -> bool:
        """Start a driver and return True; a driver of this id that there is already is as good, and False."""
        body = {"submission_id": submission_id, "entrypoint": entrypoint, "entrypoint_num_cpus": 0}
        try:
            await request(self._session, "POST", f"{self._url}/api/jobs/", body)
        except DriverUnreachableError as error:
            if "already exists" not in str(error):
                raise
            return False
        return True

    async def stop(self, submission_id: str) -> None:
        """End a driver: SIGTERM, and after some seconds SIGKILL."""
        await request(self._session, "POST", f"{self._url}/api/jobs/{submission_id}/stop")


class Control:
    """The control protocol of one driver."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._session = session
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}

    async def status(self, since: int | None) -> Status:
        """Return the driver's status; with a revision, once it differs or some seconds have passed."""
        query = "" if since is None else f"?since={since}&wait={POLL_WAIT_S}"
        timeout_s = ANSWER_S + (0 if since is None else POLL_WAIT_S)
        url = f"{self._url}{STATUS}{query}"
        content = await request(self._session, "GET", url, headers=self._headers, timeout_s=timeout_s)
        try:
            return Status.model_validate_json(content)
        except ValidationError as error:
            raise DriverUnreachableError(f"GET {url}: the answer is no status: {error}", 0) from error

    async def drain(self) -> None:
        """Ask the driver to save and end."""
        await request(self._session, "POST", self._url + DRAIN, headers=self._headers)

    async def order(self, engine: str, order: EngineOrder) -> None:
        """Order a state of an engine."""
        body = json.loads(order.model_dump_json(by_alias=True))
        await request(self._session, "PUT", self._url + ENGINE.format(name=engine), body, self._headers)

    async def scale(self, order: Scale) -> None:
        """Order so many engines."""
        body = json.loads(order.model_dump_json(by_alias=True))
        await request(self._session, "PUT", self._url + SCALE, body, self._headers)


def open_session() -> aiohttp.ClientSession:
    """Return what carries the requests to all heads and drivers.

    As many connections as it takes: each driver holds one for as long as it has nothing new to tell.
    """
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = ANSWER_S,
) -> bytes:
    """Send one request and return the answer's body; raise DriverUnreachableError."""
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with session.request(method, url, json=body, headers=headers, timeout=timeout) as answer:
            content = await answer.read()
            if answer.status >= 400:
                said = content.decode(errors="replace")[-2000:]
                raise DriverUnreachableError(f"{method} {url}: {answer.status} {said}", answer.status)
            return content
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise DriverUnreachableError(f"{method} {url}: {error!r}", 0) from error
