"""All of the operator's I/O with Kubernetes: apply, create, delete, list, status, events, the Lease.

The only module that imports `kubernetes`. Every write goes through `Cluster.request`, is attributed to our field
manager, and fails with a ClusterError that names the request, the object and the response.
"""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import aiohttp
from kubernetes.aio import client, config

from rljob_api.foreign_text import first_bytes, said
from rljob_api.reading.job_status import dumped, written
from rljob_api.status import Status
from rljob_operator.api_json import LONGEST_LINE, decoded, lines, whole
from rljob_operator.children.tool_pods import SANDBOX_API
from rljob_operator.cluster.requests import APPLY, Requests
from rljob_operator.cluster.server_clock import ServerClock
from rljob_operator.identity import API_VERSION, FIELD_MANAGER, GROUP, JOB_LABEL, KIND, PLURAL, VERSION, Manifest
from rljob_operator.plan import Target
from rljob_operator.status.events import Event
from rljob_operator.world.world import Job

log = logging.getLogger(__name__)

REQUEST_S = 30.0
"""longest wait for an answer of the API server [s]"""
WATCH_S = 290.0
"""after this time the API server ends a watch [s]"""
SILENCE_S = 150.0
"""a watch without an event for this time is broken: a bookmark comes every minute [s]"""
PAGE = 500
"""objects in one page of a list"""
FIRST_PAGE = 50
"""objects in the first page; later ones grow while they are small: an API server reads a page whole"""
MOST_OF_PAGE = 2 * 2**20
"""of one page with more than one object: a larger one is asked for again, with fewer objects [bytes]"""
MERGE = "application/merge-patch+json"
INVALID = 422
EVENT_LIFE_S = 3600.0
"""how long an API server keeps events, usually [s]"""
LONGEST_NOTE, LONGEST_REASON = 1024, 128
"""of an event; the API server's limits [bytes]"""

KINDS: Mapping[str, tuple[str, str]] = {
    "RLJob": (f"apis/{GROUP}/{VERSION}", PLURAL),
    "RayCluster": ("apis/ray.io/v1", "rayclusters"),
    "ConfigMap": ("api/v1", "configmaps"),
    "Service": ("api/v1", "services"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
    "Sandbox": (f"apis/{SANDBOX_API}", "sandboxes"),
    "Pod": ("api/v1", "pods"),
    "Secret": ("api/v1", "secrets"),
    "Job": ("apis/batch/v1", "jobs"),
    "Workload": ("apis/kueue.x-k8s.io/v1beta2", "workloads"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
    "Event": ("apis/events.k8s.io/v1", "events"),
}
"""API path and plural of what the operator reads or writes"""
CHILDREN = ("RayCluster", "ConfigMap", "Service", "NetworkPolicy", "StatefulSet", "Pod")
"""kinds of a job's objects that are watched"""
OF_KUEUE = ("Workload",)
"""kinds that are watched where the operator works with Kueue"""
OF_AGENT_SANDBOX = ("Sandbox",)
"""kinds that are watched where agent-sandbox makes the pods for tools"""
LABELLED = ("ConfigMap", "Service", "NetworkPolicy", "StatefulSet", "Sandbox", "Pod")
"""of these only objects with the job's label are watched. RayClusters are found by their owner, too: one without its
label would look like a lost cluster"""


class ClusterError(RuntimeError):
    """The API server refused or did not respond. `ClusterError(text, status)`; status 0: no response."""

    @property
    def status(self) -> int:
        return int(self.args[1])

    def __str__(self) -> str:
        return str(self.args[0])


class ConflictError(ClusterError):
    """The object was changed, created or claimed in the meantime."""


class GoneError(ClusterError):
    """The object does not exist."""


class TooLargeError(ClusterError):
    """A page of a list is too large; one with fewer objects may not be."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list of objects of a kind."""

    objects: tuple[Manifest, ...]
    resource_version: str


@dataclass(slots=True)
class RecordedEvent:
    """An event that was recorded."""

    name: str
    at: float
    """[unix s]"""
    count: int = 1


class Cluster:
    """A connection to the API server."""

    def __init__(self, api: client.ApiClient, identity: str) -> None:
        """`identity` names this process in events."""
        self.requests = Requests()
        self.clock = ServerClock()
        self._api = api
        self._identity = identity
        self._recorded: dict[str, RecordedEvent] = {}

    @classmethod
    async def connect(cls, kubeconfig: str | None, identity: str) -> Self:
        """Connect by a kubeconfig file; None: as a pod, by its ServiceAccount."""
        settings = client.Configuration()
        # The client's own default looks for a proxy and a .netrc before each request, in another thread.
        settings.client_session_kwargs = {"trust_env": False}
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)
        else:
            await config.load_kube_config(config_file=kubeconfig, client_configuration=settings)
        return cls(client.ApiClient(settings), identity)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def pages(self, kind: str, namespaces: Sequence[str], label: str | None = None) -> AsyncIterator[Page]:
        """Yield all objects of a kind with this label; no namespaces: of the whole cluster.

        Without a label: those with the job's label, of kinds whose objects have it.
        """
        selector = label or (JOB_LABEL if kind in LABELLED else None)
        everywhere: Sequence[str | None] = [None]
        for namespace in namespaces or everywhere:
            query = [("labelSelector", selector)] if selector else []
            async for page in self.lists(path(kind, namespace), query):
                objects = ({"apiVersion": page["apiVersion"], "kind": kind, **item} for item in page["items"])
                yield Page(tuple(objects), page["metadata"]["resourceVersion"])

    async def lists(
        self, where: str, query: Sequence[tuple[str, str]], limit: int = PAGE
    ) -> AsyncGenerator[Manifest, None]:
        """Yield the answers to a list request, each with at most `limit` items, and fewer where these are large."""
        token: str | None = ""
        items = min(limit, FIRST_PAGE)
        while token is not None:
            try:
                page = await self.request("GET", where, [("limit", str(items)), *query, ("continue", token)])
            except TooLargeError:
                if items == 1:
                    raise
                items = max(1, items // 4)
                continue
            yield page
            token = page["metadata"].get("continue") or None
            items = min(limit, items + max(1, items // 4))

    async def events(
        self, where: str, query: Sequence[tuple[str, str]], version: str
    ) -> AsyncGenerator[Manifest, None]:
        """Yield the events of a watch from a version on, until the API server ends it; raise ClusterError."""
        options = [("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", f"{WATCH_S:.0f}")]
        asked = await self._api.param_serialize(
            "GET",
            f"/{where}",
            query_params=[*options, ("resourceVersion", version), *query],
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        silence = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_S, sock_read=SILENCE_S)
        try:
            answer = await self._api.call_api(*asked, _request_timeout=silence)
            if answer.status >= 400:
                raise _error("WATCH", where, answer.status, await answer.read())
            try:
                async for line in lines(answer.response.content.iter_any()):
                    yield decoded(line)
            finally:
                answer.response.close()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise ClusterError(f"WATCH {where}: {said(error)}", 0) from error

    async def apply(self, wanted: Manifest, force: bool) -> Manifest:
        """Apply a child server-side, and return the object as written.

        Without `force`, an object of another owner with this name raises ConflictError; with it, our fields win.
        """
        query = [("fieldManager", FIELD_MANAGER), ("force", str(force).lower())]
        metadata = wanted["metadata"]
        where = path(wanted["kind"], metadata["namespace"], metadata["name"])
        return await self.request("PATCH", where, query, wanted, APPLY)

    async def read_secret(self, namespace: str, name: str) -> Manifest | None:
        """Return a Secret, or None."""
        return await self.read("Secret", namespace, name)

    async def pod_events(self, namespace: str, pod: str) -> Sequence[Manifest]:
        """Return the events about a pod; the first few hundred."""
        query = [("fieldSelector", f"regarding.kind=Pod,regarding.name={pod}")]
        found: list[Manifest] = []
        async with aclosing(self.lists(path("Event", namespace), query)) as pages:
            async for page in pages:
                found += page.get("items") or ()
                if len(found) >= PAGE:
                    break
        return found

    async def create_secret(self, wanted: Manifest) -> Manifest:
        """Create a Secret, and return it as written; raise ConflictError if it exists."""
        return await self.create(wanted)

    async def read(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return an object, or None."""
        try:
            return await self.request("GET", path(kind, namespace, name))
        except GoneError:
            return None

    async def create(self, wanted: Manifest) -> Manifest:
        """Create an object, and return it as written; raise ConflictError if it exists."""
        return await self.request("POST", path(wanted["kind"], wanted["metadata"]["namespace"]), [MANAGER], wanted)

    async def delete(self, target: Target) -> None:
        """Delete an object if its uid is still the same; the objects that it owns are deleted after it.

        One that is not watched has no uid here. It is read first, so that a repetition writes nothing. Only Secrets may
        not be read; the name of one has digits of its job's uid.
        """
        where = path(target.kind, target.namespace, target.name)
        body: Manifest = {"propagationPolicy": "Background"}
        try:
            if target.kind != "Secret":
                uid = target.uid or (await self.request("GET", where))["metadata"]["uid"]
                body["preconditions"] = {"uid": uid}
            await self.request("DELETE", where, body=body)
        except (GoneError, ConflictError):
            return

    async def write_status(self, job: Job, status: Status) -> Manifest:
        """Write the whole status; raise ConflictError if the job has changed since it was read.

        What another version has put there stays, as long as the API server still takes it.
        """
        whole = written(status, job.given_status)
        try:
            return await self._write_status(job, whole)
        except ClusterError as error:
            if error.status != INVALID or whole == dumped(status):
                raise
            log.warning("action=write-status outcome=refused writes what this version knows alone: %s", error)
            return await self._write_status(job, dumped(status))

    async def _write_status(self, job: Job, status: Manifest) -> Manifest:
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": job.name, "namespace": job.namespace, "resourceVersion": job.resource_version},
            "status": status,
        }
        where = f"{path('RLJob', job.namespace, job.name)}/status"
        return await self.request("PATCH", where, [MANAGER, ("force", "true")], body, APPLY)

    async def record(self, job: Job, event: Event) -> None:
        """Record an event; a repetition is counted in the first one, as long as that is known here.

        Events are for people only: one that the API server refuses is logged, and its job continues.
        """
        try:
            await self._record(job, event)
        except ClusterError as error:
            log.warning("action=record reason=%s outcome=refused: %s", event.reason, error)

    async def _record(self, job: Job, event: Event) -> None:
        what, at = f"{job.uid} {event}", time.time()
        now = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self._forget_before(at - EVENT_LIFE_S)
        if what in self._recorded and await self._count(job, self._recorded[what], now):
            return
        # kubectl describe shows such events in the order of their names.
        recorded = RecordedEvent(f"{job.name}.{time.time_ns():016x}", at)
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": recorded.name, "namespace": job.namespace},
            "eventTime": now,
            "reportingController": f"{GROUP}/operator",
            "reportingInstance": self._identity[:128],
            "type": event.kind,
            "action": event.action,
            "reason": first_bytes(event.reason, LONGEST_REASON),
            "note": first_bytes(event.note, LONGEST_NOTE),
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": job.namespace,
                "name": job.name,
                "uid": job.uid,
            },
        }
        await self.request("POST", path("Event", job.namespace), [MANAGER], body)
        self._recorded[what] = recorded

    async def _count(self, job: Job, recorded: RecordedEvent, now: str) -> bool:
        """Count an event once more; return False if the API server has forgotten it."""
        series = {"series": {"count": recorded.count + 1, "lastObservedTime": now}}
        try:
            await self.request("PATCH", path("Event", job.namespace, recorded.name), [MANAGER], series, MERGE)
        except GoneError:
            return False
        recorded.count += 1
        return True

    def _forget_before(self, at: float) -> None:
        """Forget the events that were recorded earlier; the oldest come first."""
        while self._recorded and next(iter(self._recorded.values())).at < at:
            del self._recorded[next(iter(self._recorded))]

    async def read_lease(self, namespace: str, name: str) -> Manifest | None:
        """Return the Lease, or None."""
        try:
            return await self.request("GET", path("Lease", namespace, name))
        except GoneError:
            return None

    async def write_lease(self, lease: Manifest) -> Manifest:
        """Create the Lease, or replace the one that was read; raise ConflictError if another writer was faster."""
        namespace, name = lease["metadata"]["namespace"], lease["metadata"]["name"]
        if "resourceVersion" in lease["metadata"]:
            return await self.request("PUT", path("Lease", namespace, name), [MANAGER], lease)
        return await self.request("POST", path("Lease", namespace), [MANAGER], lease)

    async def request(
        self,
        method: str,
        where: str,
        query: Sequence[tuple[str, str]] = (),
        body: Manifest | None = None,
        content_type: str = "application/json",
    ) -> Manifest:
        """Send one request and return the answer; raise ClusterError."""
        began, code = time.monotonic(), 0
        headers = {"Accept": "application/json", "Content-Type": content_type}
        asked = await self._api.param_serialize(
            method,
            f"/{where}",
            query_params=list(query),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = await self._api.call_api(*asked, _request_timeout=REQUEST_S)
            code = answer.status
            self.clock.heard(answer.response.headers.get("Date"))
            content = await _read(answer.response, where, _most_of(query))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ClusterError(f"{method} {where}: {said(error)}", 0) from error
        finally:
            self.requests.answered(method, where, content_type, code, time.monotonic() - began)
        if answer.status >= 400:
            raise _error(method, where, answer.status, content)
        try:
            parsed: Manifest = decoded(content)
        except ValueError as error:
            raise ClusterError(f"{method} {where}: no JSON: {error}", 0) from error
        return parsed


MANAGER = ("fieldManager", FIELD_MANAGER)


def _most_of(query: Sequence[tuple[str, str]]) -> int:
    """Return the limit of an answer: that of a page is soft, because a page of one object cannot become smaller."""
    return MOST_OF_PAGE if dict(query).get("limit", "1") != "1" else LONGEST_LINE


async def _read(response: aiohttp.ClientResponse, where: str, most: int) -> bytes:
    """Return the whole answer; raise TooLargeError when it has more bytes than `most`."""
    content = await whole(response.content.iter_any(), most)
    if content is None:
        response.close()
        raise TooLargeError(f"GET {where}: more than {most} bytes", 0)
    response.release()
    return content


def path(kind: str, namespace: str | None, name: str | None = None) -> str:
    """Return the path of an object, or of all objects of a kind."""
    prefix, plural = KINDS[kind]
    parts = [prefix, *(["namespaces", namespace] if namespace else []), plural, *([name] if name else [])]
    return "/".join(parts)


def _error(method: str, where: str, status: int, content: bytes) -> ClusterError:
    try:
        said: Any = decoded(content)["message"]
    except (ValueError, KeyError, TypeError):
        said = content.decode(errors="replace")[:500]
    text = f"{method} {where}: {status} {said}"
    known = {404: GoneError, 409: ConflictError}
    return known.get(status, ClusterError)(text, status)
