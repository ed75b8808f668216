"""The sandboxes that run a job's tools, seen from the driver: pods, if there are any, or namespaces.

A pod that is not there, or is busy with a call of an earlier driver, is left for the next one; its StatefulSet or
Sandbox replaces it. A call whose pod ends is made once more in another pod: a drained node is not the tool's fault.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rljob_api.control import TOKEN_VARIABLE
from rljob_api.sections import Spec, Tools
from rljob_api.sizing.tool_pods import num_tool_pods
from rljob_api.tool_protocol import PODS_VARIABLE, PORT, host, tools_token
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.sandboxes.client import Address, Client, PodAwayError, PodLostError, PodRefusesError
from rljob_trainer.sandboxes.namespaces import NamespaceError, NamespaceServer


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

    address: Address
    token: str
    settings: Tools

    def call(self, path: str, arguments: Mapping[str, Any]) -> str:
        """Return the tool's result or its error. Raises PodAwayError, PodLostError, GenerateError."""
        try:
            said = self._client.call(path, dict(arguments), self.settings.timeout_seconds)
        except PodRefusesError as error:
            raise GenerateError(str(error)) from error
        if "refused" in said:
            raise GenerateError(self._unusable(path, str(said["refused"])))
        return str(said.get("text", "Error: no result"))

    def load(self, path: str) -> None:
        """Have the pod load a tool once. Raises PodAwayError, PodLostError, and GenerateError if it cannot."""
        try:
            said = self._client.load(path)
        except PodRefusesError as error:
            raise GenerateError(str(error)) from error
        if why := said.get("refused") or said.get("text"):
            raise GenerateError(self._unusable(path, str(why)))

    def close(self) -> None:
        """Do nothing: the operator ends pods."""

    @property
    def _client(self) -> Client:
        return Client(self.address, self.token, self.settings.memory_mib)

    def _unusable(self, path: str, why: str) -> str:
        where = "the sandbox" if isinstance(self.address, str) else "a pod, which has the files of the image alone"
        return f"rollout.tools.functions {path} cannot be used in {where}: {why}"


@dataclass
class NamespacePlace:
    """One sandbox of this machine."""

    settings: Tools
    server: NamespaceServer

    def call(self, path: str, arguments: Mapping[str, Any]) -> str:
        """Return the tool's result or its error. Raises PodAwayError, PodLostError, GenerateError."""
        with self._new_after_its_end():
            return self._pod().call(path, arguments)

    def load(self, path: str) -> None:
        """Have the sandbox load a tool once. Raises as `call` does."""
        with self._new_after_its_end():
            self._pod().load(path)

    def close(self) -> None:
        """End the sandbox with all that runs in it. Raises GenerateError if it does not go away."""
        try:
            self.server.close()
        except NamespaceError as error:
            raise GenerateError(f"tools: {error}") from error

    @contextmanager
    def _new_after_its_end(self) -> Iterator[None]:
        try:
            yield
        except (PodAwayError, PodLostError):
            self.close()
            raise

    def _pod(self) -> ToolPod:
        try:
            client = self.server.client()
        except NamespaceError as error:
            raise GenerateError(f"tools: {error}") from error
        return ToolPod(client.address, client.token, self.settings)
