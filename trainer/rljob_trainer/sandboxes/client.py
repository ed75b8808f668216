"""How a driver asks the server of a sandbox to call a function, see `rljob_api.tool_protocol`."""

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from rljob_api.tool_protocol import CALL, LOAD

CONNECT_S = 5.0
"""longest time for a connection [s]"""
MARGIN_S = 30.0
"""a server that has not answered this long after the time limit of the call is gone [s]"""
MOST_ANSWER = 1 << 23
"""results have 1 MiB, which JSON may write six times as long [bytes]"""
LOAD_S = 150.0
"""longest time to load a function [s]"""

Address = tuple[str, int] | str
"""host and port of a pod, or the path of a unix socket of this machine"""


class PodAwayError(Exception):
    """A sandbox cannot take a call now; nothing has begun."""


class PodLostError(Exception):
    """A sandbox has ended, or does not answer, in the middle of a call."""


class PodRefusesError(Exception):
    """A sandbox does not accept calls of this driver."""


@dataclass(frozen=True, slots=True)
class Client:
    """Asks one sandbox, which runs one call at a time."""

    address: Address
    token: str
    memory_mib: int

    @property
    def name(self) -> str:
        """For messages."""
        return "the sandbox" if isinstance(self.address, str) else f"pod {self.address[0]}"

    def call(self, path: str, arguments: Any, timeout_s: float, **more: Any) -> Mapping[str, Any]:
        """Return what a call gives. Raises PodAwayError, PodLostError, PodRefusesError."""
        body = {"path": path, "arguments": arguments, "timeoutSeconds": timeout_s, **more}
        return self._ask(CALL, body, timeout_s + MARGIN_S)

    def load(self, path: str, **more: Any) -> Mapping[str, Any]:
        """Return why a function cannot be loaded, under `refused` or `text`. Raises what `call` raises."""
        return self._ask(LOAD, {"path": path, **more}, LOAD_S)

    def _ask(self, where: str, body: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        connection = self._connection()
        try:
            try:
                connection.connect()
            except OSError as error:
                raise PodAwayError(f"{self.name}: {error}") from error
            connection.sock.settimeout(timeout_s)
            text = json.dumps({**body, "memoryMib": self.memory_mib}, default=str)
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            try:
                connection.request("POST", where, text, headers)
                answer = connection.getresponse()
                said = answer.read(MOST_ANSWER)
            except (OSError, http.client.HTTPException) as error:
                raise PodLostError(f"{self.name}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        return self._read(answer.status, said)

    def _read(self, status: int, said: bytes) -> Mapping[str, Any]:
        try:
            facts: Mapping[str, Any] = dict(json.loads(said))
        except (ValueError, TypeError, RecursionError):
            facts = {"error": said[:200].decode(errors="replace")}
        if status == HTTPStatus.CONFLICT:
            raise PodAwayError(f"{self.name} is busy with a call of an earlier driver")
        if status != HTTPStatus.OK:
            raise PodRefusesError(f"{self.name} refuses calls of tools: {status}: {facts.get('error')}")
        return facts

    def _connection(self) -> http.client.HTTPConnection:
        if isinstance(self.address, str):
            return UnixConnection(self.address)
        host, port = self.address
        return http.client.HTTPConnection(host, port, timeout=CONNECT_S)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=CONNECT_S)
        self._path = path

    def connect(self) -> None:
        """Connect. Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(CONNECT_S)
        self.sock.connect(self._path)
