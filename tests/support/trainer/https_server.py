"""A web server with a certificate of an authority of its own, which sends ranges and cuts connections."""

import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from local_cluster.certificates import Authority

RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Site:
    """Files by their paths, and what goes wrong."""

    files: dict[str, bytes] = field(default_factory=dict)
    cuts: int = 0
    """so many of the next answers end in the middle"""
    statuses: dict[str, int] = field(default_factory=dict)
    """path -> what is answered instead"""
    whole: bool = False
    """whether ranges are not understood"""
    asked: list[str] = field(default_factory=list)
    url: str = ""
    authority: Path = Path()

    def answer(self, path: str, wanted: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and content for a path and a header Range."""
        self.asked.append(path)
        if path in self.statuses or path not in self.files:
            return self.statuses.get(path, 404), {}, b""
        content = self.files[path]
        headers = {"ETag": f'"{hash(content)}"'}
        found = RANGE.fullmatch(wanted)
        if found is None or self.whole:
            return 200, headers, content
        first, last = int(found[1]), min(int(found[2]), len(content) - 1)
        return 206, headers | {"Content-Range": f"bytes {first}-{last}/{len(content)}"}, content[first : last + 1]


@contextmanager
def https_site(directory: Path) -> Iterator[Site]:
    """Serve until the context ends; certificates lie in `directory`."""
    authority = Authority(directory)
    own = authority.server("site", ["localhost"], ["127.0.0.1"])
    site = Site(authority=authority.own.certificate)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, content = site.answer(self.path, self.headers.get("Range", ""))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if site.cuts and len(content) > 1:
                site.cuts -= 1
                content, self.close_connection = content[: len(content) // 2], True
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    site.url = f"https://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
