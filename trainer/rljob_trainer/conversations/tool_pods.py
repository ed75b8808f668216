"""The pods that run a job's tools, seen from the driver: which there are, and how one is called.

A pod that is not there, or is busy with a call of an earlier driver, is left for the next one; its StatefulSet or
Sandbox replaces it. A call whose pod ends is made once more in another pod: a drained node is no fault of the tool.
"""

import http.client
import json
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from rljob_api.control import TOKEN_VARIABLE
from rljob_api.sections import Spec, Tools
from rljob_api.sizing.tool_pods import num_tool_pods
from rljob_api.tool_protocol import CALL, LOAD, PODS_VARIABLE, PORT, host, tools_token
from rljob_trainer.conversations.errors import GenerateError

log = logging.getLogger(__name__)

CONNECT_S = 5.0
"""longest time for a connection [s]"""
MARGIN_S = 30.0
"""a pod that has not answered this long after the time limit of the call is gone [s]"""
MOST_ANSWER = 1 << 23
"""of a pod: results have 1 MiB, which JSON may write six times as long [bytes]"""
LOAD_S = 150.0
"""longest time for a pod to load a tool [s]"""


class PodAwayError(Exception):
    """A pod cannot take a call now; nothing has begun."""


class PodLostError(Exception):
    """A pod has ended, or does not answer, in the middle of a call."""


@dataclass(frozen=True, slots=True)
class Pool:
    """All pods of a job's tools."""

    addresses: tuple[tuple[str, int], ...]
    """host and port"""
    token: str
    """which they accept"""


def pool_of(spec: Spec, environ: Mapping[str, str]) -> Pool | None:
    """Return the pods that the operator has made for the tools of a run; None: there are none."""
    name, token = environ.get(PODS_VARIABLE), environ.get(TOKEN_VARIABLE)
    if not name or not token:
        return None
    return Pool(tuple((host(name, index), PORT) for index in range(num_tool_pods(spec))), tools_token(token))


@dataclass(frozen=True, slots=True)
class ToolPod:
    """One pod, which runs one call at a time."""

    address: tuple[str, int] | str
    """host and port; or the path of a unix socket, of a sandbox on this machine"""
    token: str
    settings: Tools

    def call(self, path: str, arguments: Mapping[str, Any]) -> str:
        """Return the tool's result or its error. Raises PodAwayError, PodLostError, GenerateError."""
        body = {"path": path, "arguments": dict(arguments), "timeoutSeconds": self.settings.timeout_seconds}
        said = self._ask(CALL, body, self.settings.timeout_seconds + MARGIN_S)
        if "refused" in said:
            raise GenerateError(self._unusable(path, str(said["refused"])))
        return str(said.get("text", "Error: no result"))

    def load(self, path: str) -> None:
        """Have the pod load a tool once. Raises PodAwayError, PodLostError, and GenerateError if it cannot."""
        said = self._ask(LOAD, {"path": path}, LOAD_S)
        if why := said.get("refused") or said.get("text"):
            raise GenerateError(self._unusable(path, str(why)))

    def close(self) -> None:
        """Do nothing: the operator ends pods."""

    def _ask(self, where: str, body: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        name, connection = self._name, self._connection()
        try:
            try:
                connection.connect()
            except OSError as error:
                raise PodAwayError(f"{name}: {error}") from error
            connection.sock.settimeout(timeout_s)
            text = json.dumps({**body, "memoryMib": self.settings.memory_mib}, default=str)
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            try:
                connection.request("POST", where, text, headers)
                answer = connection.getresponse()
                said = answer.read(MOST_ANSWER)
            except (OSError, http.client.HTTPException) as error:
                raise PodLostError(f"{name}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        return self._read(answer.status, said)

    def _read(self, status: int, said: bytes) -> Mapping[str, Any]:
        try:
            facts: Mapping[str, Any] = dict(json.loads(said))
        except (ValueError, TypeError, RecursionError):
            facts = {"error": said[:200].decode(errors="replace")}
        if status == HTTPStatus.CONFLICT:
            raise PodAwayError(f"{self._name} is busy with a call of an earlier driver")
        if status != HTTPStatus.OK:
            raise GenerateError(f"{self._name} refuses calls of tools: {status}: {facts.get('error')}")
        return facts

    @property
    def _name(self) -> str:
        return "the sandbox of tools" if isinstance(self.address, str) else f"pod {self.address[0]}"

    def _connection(self) -> http.client.HTTPConnection:
        if isinstance(self.address, str):
            return UnixConnection(self.address)
        name, port = self.address
        return http.client.HTTPConnection(name, port, timeout=CONNECT_S)

    def _unusable(self, path: str, why: str) -> str:
        where = "the sandbox" if isinstance(self.address, str) else "a pod, which has the files of the image alone"
        return f"rollout.tools.functions {path} cannot be used in {where}: {why}"


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
