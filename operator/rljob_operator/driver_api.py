"""The two HTTP interfaces of a job's head: the Ray Jobs API and the driver's control protocol.

Both clients send requests and translate responses; nothing is decided here. Failures are DriverUnreachableErrors.
"""

import json
from collections.abc import Mapping
from typing import Any

import aiohttp
from pydantic import ValidationError

from rljob_api.control import DRAIN, ENGINE, SCALE, STATUS, EngineOrder, Scale, Status, ray_token
from rljob_operator.driver_news import RayAnswer
from rljob_operator.world import DriverState

ANSWER_S = 10.0
"""time limit of a request that does not wait [s]"""
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


class RayJobs:
    """The Ray Jobs API of one head."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        """`token` is that of the control protocol. Ray gets the one derived from it; older clusters ignore it."""
        self._session = session
        self._url = url
        self._headers = {"Authorization": f"Bearer {ray_token(token)}"}

    async def look(self, submission_id: str) -> RayAnswer:
        """Return what Ray says of the driver with this id."""
        try:
            content = await self._request("GET", submission_id)
        except DriverUnreachableError as error:
            # A proxy in between can answer 404, too; only Ray's own message counts.
            if error.status == 404 and "does not exist" in str(error):
                return RayAnswer(DriverState.ABSENT)
            raise
        try:
            answer = json.loads(content)
            return RayAnswer(STATES[answer["status"]], answer.get("driver_exit_code"), answer.get("message") or "")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DriverUnreachableError(f"{self._url}: the answer is not Ray's: {content[:200]!r}", 0) from error

    async def submit(self, submission_id: str, entrypoint: str) -> bool:
        """Start a driver and return True; return False if a driver with this id exists already."""
        body = {"submission_id": submission_id, "entrypoint": entrypoint, "entrypoint_num_cpus": 0}
        try:
            await self._request("POST", "", body)
        except DriverUnreachableError as error:
            if "already exists" not in str(error):
                raise
            return False
        return True

    async def stop(self, submission_id: str) -> None:
        """End a driver: SIGTERM, and after some seconds SIGKILL."""
        await self._request("POST", f"{submission_id}/stop")

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        return await request(self._session, method, f"{self._url}/api/jobs/{path}", body, self._headers)


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
    """Return the HTTP session for all heads and drivers.

    Connections are not limited: a long-poll holds one for each driver until its status changes.
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
