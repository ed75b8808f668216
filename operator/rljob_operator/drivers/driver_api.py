"""The two HTTP interfaces of a job's head: the Ray Jobs API and the driver's control protocol.

Both clients send requests and translate responses; nothing is decided here. Failures are DriverUnreachableErrors.
A head belongs to a tenant and answers what it likes: an answer is read to a limit and never decompressed, and a
redirect is not followed.
"""

import json
from collections.abc import Mapping
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver

from rljob_api.control import DRAIN, ENGINE, SCALE, STATUS, EngineOrder, Scale, Status, ray_token
from rljob_api.foreign_text import printable, said
from rljob_api.reported import ReportError, read_status
from rljob_operator.api_json import whole
from rljob_operator.world.driver_news import RayAnswer
from rljob_operator.world.world import DriverState

ANSWER_S = 10.0
"""time limit of a request that does not wait [s]"""
POLL_WAIT_S = 15
"""length of one long-poll [s]"""
LONGEST_ANSWER = 2 * 2**20
"""of Ray or a driver. A status of 1,000 engines that all have failed has half of it; one that no object of the API
server can hold is of no use [bytes]"""
LONGEST_OUTPUT = 16_000
"""of what Ray quotes of a driver's output; Ray itself quotes 20,000 [characters]"""
LONGEST_REFUSAL = 2_000
"""of the end of an answer that refuses a request, in messages [bytes]"""

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
            if error.status == 404 and f"Job {submission_id} does not exist" in str(error):
                return RayAnswer(DriverState.ABSENT)
            raise
        answer = _ray_answer(content)
        if answer is None:
            raise DriverUnreachableError(f"{self._url}: the answer is not Ray's: {content[:200]!r}", 0)
        return answer

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
            return read_status(content)
        except ReportError as error:
            raise DriverUnreachableError(f"GET {url}: the answer is not a status: {said(error)}", 0) from error

    async def drain(self) -> None:
        """Ask the driver to save and end."""
        await request(self._session, "POST", self._url + DRAIN, headers=self._headers)

    async def order(self, engine: str, order: EngineOrder) -> None:
        """Order a state of an engine."""
        body = json.loads(order.model_dump_json(by_alias=True))
        await request(self._session, "PUT", self._url + ENGINE.format(name=engine), body, self._headers)

    async def scale(self, order: Scale) -> None:
        """Order this number of engines."""
        body = json.loads(order.model_dump_json(by_alias=True))
        await request(self._session, "PUT", self._url + SCALE, body, self._headers)


def _ray_answer(content: bytes) -> RayAnswer | None:
    """Return what Ray says of a driver; None: this is not an answer of Ray."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict):
        return None
    state, code, message = answer.get("status"), answer.get("driver_exit_code"), answer.get("message")
    if not isinstance(state, str) or state not in STATES or not isinstance(message, str | None):
        return None
    if code is not None and (type(code) is not int or not -(2**31) <= code < 2**31):
        return None
    return RayAnswer(STATES[state], code, _shortened(message or ""))


def _shortened(message: str) -> str:
    """Return the first line of Ray's message, which is Ray's own, and the end of the output that it quotes."""
    message = message.encode("utf-8", "backslashreplace").decode() if not message.isascii() else message
    if len(message) <= LONGEST_OUTPUT:
        return message
    first = message[:LONGEST_OUTPUT].partition("\n")[0]
    return f"{first[:200]}\n{message[-LONGEST_OUTPUT:]}"


def open_session(resolver: AbstractResolver | None = None) -> aiohttp.ClientSession:
    """Return the HTTP session for all heads and drivers; `resolver` finds their addresses, None: DNS does.

    Connections are not limited: a long-poll holds one for each driver until its status changes. Nothing is
    decompressed: it may fill a thousand times what came over the wire. Cookies are not kept, because others would get
    them.
    """
    connector = aiohttp.TCPConnector(limit=0, resolver=resolver, use_dns_cache=resolver is None)
    return aiohttp.ClientSession(connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar())


async def request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = ANSWER_S,
) -> bytes:
    """Send one request and return the answer's body; raise DriverUnreachableError."""
    asked = {"Accept-Encoding": "identity", **(headers or {})}
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with session.request(
            method, url, json=body, headers=asked, timeout=timeout, allow_redirects=False
        ) as answer:
            content = await _body(answer, f"{method} {url}")
            if answer.status >= 300:
                text = printable(content[-LONGEST_REFUSAL:].decode(errors="replace"))
                raise DriverUnreachableError(f"{method} {url}: {answer.status} {text}", answer.status)
            return content
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise DriverUnreachableError(f"{method} {url}: {said(error)}", 0) from error


async def _body(answer: aiohttp.ClientResponse, what: str) -> bytes:
    """Return the body of an answer, which is read no further than to the limit."""
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise DriverUnreachableError(f"{what}: the answer is compressed; expected it uncompressed", 0)
    content = await whole(answer.content.iter_any(), LONGEST_ANSWER)
    if content is None:
        answer.close()
        raise DriverUnreachableError(f"{what}: the answer has more than {LONGEST_ANSWER:,} bytes", 0)
    return content
