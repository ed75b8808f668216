"""The server in a sandbox: `python -m rljob_trainer.conversations.pod_server`, the first process of its container.

    driver ── POST /v1/call, bearer token ──► this server ── asks ──► pod_call.py ── calls ──► the tool
                                                  └ kills all processes and removes all files before it answers

The container is that of a pod, or namespaces on one machine (`sandboxes/namespaces.py`).

One call at a time: all that a call starts or leaves belongs to it. When all of it is gone, the process of the next call
is started, which imports the tools while the model generates. The tool has the same user as this server, and still
cannot stop or read it: the kernel keeps signals from the first process of a container, its memory and environment are
closed (`close_memory`), and other ways are filtered (`system_calls`). The protocol is `tool_protocol`.
"""

import argparse
import hmac
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rljob_api.tool_protocol import CALL, DIGEST_VARIABLE, HEALTH, LOAD, PORT, digest
from rljob_trainer.processes.file_removal import remove_all
from rljob_trainer.processes.system_calls import close_memory
from rljob_trainer.sandboxes.call_process import CallProcess, Limits

MOST_REQUEST = 1 << 24
"""[bytes]"""
LOAD_S = 120.0
"""longest time for a tool's module to be imported [s]"""
SCRATCH = (Path("/tmp"), Path("/dev/shm"))  # the pod's own
"""all directories that can be written to"""
ESCAPED = re.compile(r"\\([0-7]{3})")
"""a space or a backslash in a path of mountinfo"""


class RequestError(Exception):
    """A request that is refused: `RequestError(status, text)`."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a driver asks for."""

    path: str
    arguments: Mapping[str, Any] | None
    """None: the tool is only to be loaded"""
    limits: Limits


class ToolServer:
    """Runs one call after the other."""

    def __init__(self, token_digest: str, scratch: Sequence[Path]) -> None:
        self._digest = token_digest
        self._scratch = scratch
        self._busy = threading.Lock()
        self._next: CallProcess | None = None
        self._imports: dict[str, None] = {}
        """tools that have been used, imported ahead of the next call"""
        self._mounts = mounts(scratch)
        """modules of tools, where the sandbox has them below a directory that can be written to"""

    def answer(self, where: str, authorization: str, body: bytes) -> Mapping[str, Any]:
        """Return the answer to a POST. Raises RequestError."""
        token = authorization.removeprefix("Bearer ")
        if not hmac.compare_digest(digest(token), self._digest):
            raise RequestError(HTTPStatus.UNAUTHORIZED, "the token is not the driver's")
        request = read(where, body)
        if not self._busy.acquire(blocking=False):
            raise RequestError(HTTPStatus.CONFLICT, "a call is under way")
        try:
            return self._run(request)
        finally:
            self._busy.release()

    def clear(self) -> None:
        """End all other processes of the container, and remove all files. Raises OSError if that is impossible."""
        end_all_others()
        if mounts(self._scratch) != self._mounts:
            raise OSError("the modules of tools have been moved")
        for directory in self._scratch:
            remove_all(directory, self._mounts)

    def _run(self, request: Request) -> Mapping[str, Any]:
        process, self._next = self._next, None
        if process is None or not process.can_take(request.limits):
            if process is not None:
                self._end(process)
            process = CallProcess.start(request.limits.memory_bytes, self._imports)
        try:
            said = process.result(request.path, request.arguments, request.limits)
        finally:
            self._end(process)
        if "refused" not in said:
            self._imports[request.path] = None
        with suppress(OSError):  # the next call tries again, and reports it
            self._next = CallProcess.start(request.limits.memory_bytes, self._imports)
        return said

    def _end(self, process: CallProcess) -> None:
        self.clear()
        process.close()


def read(where: str, body: bytes) -> Request:
    """Return what is asked for. Raises RequestError."""
    if where not in (CALL, LOAD):
        raise RequestError(HTTPStatus.NOT_FOUND, f"no {where}")
    try:
        given = json.loads(body)
        limits = Limits(float(given.get("timeoutSeconds", LOAD_S)), int(given["memoryMib"]) << 20)
        return Request(str(given["path"]), dict(given["arguments"]) if where == CALL else None, limits)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"{type(error).__name__}: {error}") from error


def mounts(directories: Sequence[Path], mountinfo: Path = Path("/proc/self/mountinfo")) -> frozenset[str]:
    """Return the mounts inside of these directories."""
    places = (line.split(" ")[4] for line in mountinfo.read_text(errors="surrogateescape").splitlines())
    paths = (Path(ESCAPED.sub(lambda found: chr(int(found[1], 8)), place)) for place in places)
    return frozenset(str(path) for path in paths if any(directory in path.parents for directory in directories))


def end_all_others() -> None:
    """Kill all processes of the container but this one, which is the first; return when none is left."""
    if os.getpid() != 1:
        raise OSError("not the first process of a container: this would kill the user's other processes")
    while True:
        try:
            os.kill(-1, 9)
        except ProcessLookupError:
            return
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def serve(server: ToolServer, door: socket.socket) -> None:
    """Answer requests that come through a listening socket, for ever."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            known = self.path == HEALTH
            self._say(HTTPStatus.OK if known else HTTPStatus.NOT_FOUND, {})

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > MOST_REQUEST:
                self.close_connection = True
                return self._say(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": f"at most {MOST_REQUEST} bytes"})
            body = self.rfile.read(int(length))
            try:
                said = server.answer(self.path, self.headers.get("Authorization", ""), body)
            except RequestError as error:
                status, text = error.args
                return self._say(status, {"error": text})
            except OSError as error:  # not clean any more, and it cannot be: the kubelet makes a new container
                sys.stderr.write(f"action=end reason={error}\n")
                os._exit(1)
            return self._say(HTTPStatus.OK, said)

        def log_message(self, format: str, *args: Any) -> None:  # the name is the base class's
            """Say nothing: there are many calls, and the driver logs those that fail."""

        def _say(self, status: HTTPStatus, facts: Mapping[str, Any]) -> None:
            text = json.dumps(facts).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    class Listener(ThreadingHTTPServer):
        address_family = door.family  # that of the network is refused in namespaces

    listener = Listener(("", 0), Handler, bind_and_activate=False)
    listener.socket.close()
    listener.socket = door
    listener.serve_forever()


def listening(where: str) -> socket.socket:
    """Return the listening socket at HOST:PORT, or the inherited one of `fd:N`."""
    if where.startswith("fd:"):
        return socket.socket(fileno=int(where.removeprefix("fd:")))
    host, _, port = where.rpartition(":")
    return socket.create_server((host, int(port)))


def main(arguments: Sequence[str]) -> None:
    """Serve; end only with an error, or with the container."""
    parser = argparse.ArgumentParser(prog="python -m rljob_trainer.conversations.pod_server", description=__doc__)
    parser.add_argument("--listen", default=f"0.0.0.0:{PORT}", metavar="HOST:PORT", help="or fd:N, an open socket")
    options = parser.parse_args(arguments)
    token_digest = os.environ.pop(DIGEST_VARIABLE, "")
    if not token_digest:
        sys.exit(f"environment variable {DIGEST_VARIABLE} must hold the digest of the token for tools")
    sys.path[:] = [each for each in sys.path if Path(each) not in SCRATCH]  # where hostile code writes
    close_memory()
    server = ToolServer(token_digest, SCRATCH)
    try:
        server.clear()  # of the container before, which may have ended in the middle of a call
        serve(server, listening(options.listen))
    except OSError as error:
        sys.exit(f"cannot serve tools: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
