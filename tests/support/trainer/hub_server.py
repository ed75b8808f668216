"""A Hugging Face Hub on this machine: the four requests of a download, with tokens, revisions and cut connections."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE = ".safetensors"
"""kept by git-lfs, whose hash is another"""


@dataclass
class HubServer:
    """Repositories by `models/ORG/NAME` or `datasets/ORG/NAME`, and what goes wrong."""

    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    """repository -> commit -> path -> content"""
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    """repository -> the token that may read it; absent: anyone may"""
    gated: set[str] = field(default_factory=set)
    cut: dict[str, int] = field(default_factory=dict)
    """path -> so many of its next answers end in the middle"""
    damaged: set[str] = field(default_factory=set)
    """paths that are sent with one byte changed"""
    listed: dict[str, str] = field(default_factory=dict)
    """path -> another path that the listings say instead"""
    etags: dict[str, str] = field(default_factory=dict)
    """path -> a lie about its blob"""
    sha: str = ""
    """a lie about the commit of each revision"""
    moved: bool = False
    """whether what is asked of the API is answered elsewhere, and files are, too"""
    answer: tuple[int, dict[str, str], bytes] | None = None
    """what the API answers instead: status, headers, and a piece that is repeated without end"""
    drips: frozenset[str] = frozenset()
    """paths whose content comes byte by byte, and so does that of the API for `api`"""
    pages: bool = False
    """whether each listing has a next page"""
    longer: int | None = None
    """bytes that follow each file in chunks, whose end nothing says"""
    packed: bool = False
    """whether files come compressed"""
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def push(self, repo: str, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Make a commit, and return its hash."""
        made = json.dumps({path: content.hex() for path, content in files.items()}, sort_keys=True)
        commit = hashlib.sha1(f"{repo}{made}".encode()).hexdigest()
        self.repos.setdefault(repo, {})[commit] = dict(files)
        self.branches.setdefault(repo, {})[branch] = commit
        return commit

    def commit(self, repo: str, revision: str) -> str | None:
        commits = self.repos.get(repo, {})
        return revision if revision in commits else self.branches.get(repo, {}).get(revision)

    def downloads(self, path: str) -> int:
        """Return how often a file's content was sent."""
        return sum(request.startswith("GET") and request.endswith(f"/{path}") for request in self.requests)


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """Serve while the block runs."""
    hub = HubServer()

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: HubServer

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.served.requests.append(f"{self.command} {path}")
        if self.served.moved and not path.startswith("/elsewhere"):
            return self._send(b"", {"Location": f"/elsewhere{self.path}"}, 307)
        path = path.removeprefix("/elsewhere")
        if self.served.answer is not None and path.startswith("/api/"):
            return self._go_on(*self.served.answer)
        if found := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/(revision|tree)/(.+)", path):
            return self._listing(f"{found[1]}/{found[2]}", found[3], found[4])
        if found := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._file(f"{(found[1] or 'models/')[:-1]}/{found[2]}", found[3], found[4])
        return self._refuse(404, "EntryNotFound")

    def _allowed(self, repo: str, revision: str) -> str | None:
        """Return the commit, or None after a refusal."""
        token = self.served.tokens.get(repo)
        if repo not in self.served.repos or (token and self.headers.get("Authorization") != f"Bearer {token}"):
            self._refuse(401, "RepoNotFound")
            return None
        if repo in self.served.gated:
            self._refuse(403, "GatedRepo")
            return None
        commit = self.served.commit(repo, revision)
        if commit is None:
            self._refuse(404, "RevisionNotFound")
        return commit

    def _listing(self, repo: str, what: str, revision: str) -> None:
        commit = self._allowed(repo, revision)
        if commit is None:
            return
        files = self.served.repos[repo][commit]
        if what == "revision":
            siblings = [{"rfilename": path} for path in files]
            sha = self.served.sha or commit
            self._send(json.dumps({"id": repo.partition("/")[2], "sha": sha, "siblings": siblings}).encode())
            return
        listed = self.served.listed
        entries = [_entry(path, content) | {"path": listed.get(path, path)} for path, content in files.items()]
        page = {"Link": f'<{self.served.url}{self.path}?cursor={len(self.served.requests)}>; rel="next"'}
        self._send(json.dumps(entries).encode(), page if self.served.pages else {})

    def _file(self, repo: str, revision: str, path: str) -> None:
        commit = self._allowed(repo, revision)
        if commit is None:
            return
        content = self.served.repos[repo][commit].get(path)
        if content is None:
            self._refuse(404, "EntryNotFound", commit)
            return
        etag = _entry(path, content).get("lfs", {}).get("oid") or _entry(path, content)["oid"]
        etag = self.served.etags.get(path, etag)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if path in self.served.damaged:
            content = bytes([content[0] ^ 1]) + content[1:]
        begin = 0
        if found := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            begin = int(found[1])
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        is_cut = self.command == "GET" and self.served.cut.get(path, 0) > 0
        if is_cut:
            self.served.cut[path] -= 1
        if self.command == "GET" and self.served.packed:
            headers |= {"Content-Encoding": "gzip"}
        if self.command == "GET" and self.served.longer is not None:
            self._in_chunks(content[begin:], headers)
        else:
            self._send(content[begin:], headers, 206 if begin else 200, is_cut)

    def _in_chunks(self, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(200)
        for name, value in {"Transfer-Encoding": "chunked", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        for piece in (content, b"x" * (self.served.longer or 0)):
            if piece:
                with suppress(OSError):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        with suppress(OSError):
            self.wfile.write(b"0\r\n\r\n")

    def _send(
        self, body: bytes, headers: Mapping[str, str] | None = None, status: int = 200, cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        path = urlsplit(self.path).path
        if self.command == "GET" and (Path(path).name in self.served.drips or path.split("/")[1] in self.served.drips):
            self._drip(body)
        elif self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut

    def _drip(self, body: bytes) -> None:
        with suppress(OSError):
            for place in range(len(body)):
                self.wfile.write(body[place : place + 1])
                self.wfile.flush()
                threading.Event().wait(0.02)

    def _go_on(self, status: int, headers: Mapping[str, str], piece: bytes) -> None:
        self.send_response(status)
        for name, value in {"Connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            while self.command == "GET":
                self.wfile.write(piece)
        self.close_connection = True

    def _refuse(self, status: int, code: str, commit: str = "") -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": code}
        self._send(b"", headers | ({"X-Repo-Commit": commit} if commit else {}), status)

    def log_message(self, *_: object) -> None:
        """Be silent."""


def _entry(path: str, content: bytes) -> dict:
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry = {"type": "file", "path": path, "size": len(content), "oid": blob}
    if Path(path).suffix == LARGE:
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 100}
    return entry
