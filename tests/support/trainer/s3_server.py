"""A real S3 server on a directory, which can be stopped and started again, and a proxy that cuts its connections."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.waiting import until

KEY, SECRET, REGION = "rljob", "rljob-secret", "us-east-1"
PIECE = 65_536


@dataclass
class S3Server:
    """VersityGW: buckets are directories, objects files."""

    program: Path
    directory: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it accepts connections."""
        command = [self.program, "--quiet", "--port", f"127.0.0.1:{self.port}", "--region", REGION, "posix"]
        variables = {**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        with self.directory.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen([*command, self.directory], env=variables, stdout=log, stderr=log)
        until(lambda: _accepts(self.port))

    def stop(self) -> None:
        """Kill it; what it holds stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def bucket(self, name: str) -> Path:
        """Make a bucket; return its directory."""
        (self.directory / name).mkdir(exist_ok=True)
        return self.directory / name

    def environ(self, port: int | None = None) -> dict[str, str]:
        """Return the variables that reach it, through another port if one is given."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
        }


@contextmanager
def s3_server(program: Path, directory: Path) -> Iterator[S3Server]:
    """Serve until the context ends."""
    directory.mkdir(parents=True, exist_ok=True)
    server = S3Server(program, directory, _free_port())
    server.start()
    try:
        yield server
    finally:
        server.stop()


@dataclass
class CuttingProxy:
    """Passes bytes on, and cuts connections."""

    target: int
    """port on this machine"""
    cuts: int = 0
    """how many of the next connections that carry more than `after` bytes are cut"""
    after: int = 0
    """bytes of one direction that pass before a cut"""
    passed: int = 0
    """bytes from the server so far"""
    lock: threading.Lock = field(default_factory=threading.Lock)
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    def serve(self) -> None:
        """Accept connections until the listener is closed."""
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connected, args=(client,), daemon=True).start()

    def _connected(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            client.close()
            return
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=(source, sink, source is server), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        seen = 0
        with suppress(OSError):
            while piece := source.recv(PIECE):
                seen += len(piece)
                if seen > self.after and self._takes_a_cut():
                    break
                sink.sendall(piece)
                if is_answer:
                    with self.lock:
                        self.passed += len(piece)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _takes_a_cut(self) -> bool:
        with self.lock:
            taken = self.cuts > 0
            self.cuts -= taken
            return taken


@contextmanager
def cutting_proxy(target: int) -> Iterator[CuttingProxy]:
    """Pass bytes on to a port until the context ends."""
    proxy = CuttingProxy(target)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.listener.shutdown(socket.SHUT_RDWR)
        proxy.listener.close()
        thread.join()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
