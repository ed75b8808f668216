"""Admission under load: our webhook and a bare kopf handler in one run, and a replica that is killed meanwhile."""

import asyncio
import base64
import json
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
from api import RLJOBS, Api, all_of, connected
from arena import NAMESPACE
from prometheus_client.parser import text_string_to_metric_families
from webhook_load import Load, at_times, load, until_answered

from local_cluster import control_plane, home
from local_cluster.api_server import ApiServer, start_api_server
from local_cluster.binaries import binary
from local_cluster.certificates import Certificate
from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.ports import free_port
from support.operator.helm_release import rendered
from support.operator.operator_process import ROOT, STORAGE
from support.operator.operator_world import raw_job

WARM_UP_S = 5.0
UNTIL_REMOVED_S = 1.0
"""from the end of a replica until a Service sends it nothing more, in a cluster that is quick [s]"""
TYPO = {"sglang": {"mem-fraction-statics": 0.5}}
"""only the webhook refuses it"""
BAD = 10
"""one of so many jobs has the typo"""
QUANTILES = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("largest", 1.0))
THROUGH_THE_API_SERVER = 4
"""its share of the rate: the API server shares the cores, and spends ten times the webhook's time on a request"""


@dataclass(frozen=True)
class Measured:
    """A server under load."""

    load: Load
    judging_s: float | None
    """of a request, in our rules and arithmetic; None: not known"""
    memory_mb: float


@dataclass(frozen=True)
class Killed:
    """What clients of the API server have met while a replica was killed."""

    good: int
    lost: int
    """good jobs that were not taken"""
    bad: int
    let_through: int
    """jobs with a typo that were taken, because no webhook answered and failurePolicy is Ignore"""


class Server:
    """A webhook's process; `{port}` and `{pages}` in its command are filled in."""

    def __init__(self, name: str, command: Sequence[str], directory: Path) -> None:
        self.port, self._pages = free_port(), free_port()
        filled = [part.replace("{port}", str(self.port)).replace("{pages}", str(self._pages)) for part in command]
        paths = os.pathsep.join(str(ROOT / part) for part in ("crds", "operator"))
        with (directory / f"{name}.log").open("wb") as log:
            self._process = subprocess.Popen(filled, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": paths})

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/validate"

    @property
    def memory_mb(self) -> float:
        return float(psutil.Process(self._process.pid).memory_info().rss) / 1e6

    async def judged(self) -> tuple[float, float]:
        """Return the seconds spent on reviews, and their number, so far. Of our webhook only."""
        page = f"http://127.0.0.1:{self._pages}/metrics"
        async with aiohttp.ClientSession() as session, session.get(page) as answer:
            families = text_string_to_metric_families(await answer.text())
        samples = {each.name: each.value for family in families for each in family.samples}
        return samples["rljob_webhook_review_seconds_sum"], samples["rljob_webhook_review_seconds_count"]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


async def admission(rate: int, seconds: float, nodes: int, pods: int) -> tuple[dict[str, Measured], Killed]:
    """Return what the load has met at each server, and what clients of the API server have met."""
    clusters = home.clusters_of_this_user()
    home.remove_orphans(clusters)
    with home.owned_directory(clusters) as directory, ExitStack() as ending:
        server = start_api_server(directory, os.environ)
        kubectl = Kubectl(binary("kubectl", os.environ), server.kubeconfig)
        kubectl("apply", "--server-side", *(f"--filename={path}" for path in control_plane.OUR_CRDS))
        kubectl("create", "namespace", NAMESPACE)
        pair = server.authority.server("webhook", ["localhost"], ["127.0.0.1"])
        trusted = server.authority.own.certificate

        def started(name: str, command: Sequence[str]) -> Server:
            found = Server(name, command, directory)
            ending.callback(found.kill)
            return found

        async with connected(server) as api:
            await fill(api, nodes, pods)
            command = our_command(server, pair)
            ours, bare = started("rljob", command), started("kopf", bare_command(server, pair))
            found = {
                "a bare kopf handler": await measured(bare, trusted, rate, seconds, judges=False),
                "rljob's webhook": await measured(ours, trusted, rate, seconds, judges=True),
            }
            bare.kill()
            second = started("rljob-2", command)
            await until_answered(second.url, trusted)
            killed = await while_killed(
                api, kubectl, server, [ours, second], rate // THROUGH_THE_API_SERVER, min(seconds, 20)
            )
    return found, killed


def our_command(server: ApiServer, pair: Certificate) -> list[str]:
    """Return the command line of our webhook, with a certificate that somebody else makes."""
    directory = pair.certificate.parent / "mounted"
    directory.mkdir()
    for name, path in (("tls.crt", pair.certificate), ("tls.key", pair.key)):
        (directory / name).write_bytes(path.read_bytes())
    where = ["--host=127.0.0.1", "--port={port}", "--pages-port={pages}", f"--kubeconfig={server.kubeconfig}"]
    defaults = ["--image=rljob/trainer:test", f"--storage={STORAGE}", "--log-level=WARNING"]
    return [sys.executable, "-m", "rljob_operator.webhook", *where, f"--certificate-directory={directory}", *defaults]


def bare_command(server: ApiServer, pair: Certificate) -> list[str]:
    """Return the command line of the handler that looks at nothing."""
    program = str(Path(__file__).with_name("bare_webhook.py"))
    return [sys.executable, program, str(server.kubeconfig), "{port}", str(pair.certificate), str(pair.key)]


async def fill(api: Api, nodes: int, pods: int) -> None:
    """Create nodes, and pods on them, for the webhook to look at."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await api.send("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", json.dumps(account).encode())
    room = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}

    async def node(number: int) -> None:
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}"}, "status": status}
        await api.send("POST", "/api/v1/nodes", json.dumps(body).encode())
        # A new node gets the taint `not-ready`, which nobody here would remove.
        well = json.dumps({"spec": {"taints": None}}).encode()
        await api.send("PATCH", f"/api/v1/nodes/node-{number}", well, "application/merge-patch+json")

    async def pod(number: int) -> None:
        resources = {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"nvidia.com/gpu": "1"}}
        container = {"name": "main", "image": "none", "resources": resources}
        spec = {"containers": [container], "nodeName": f"node-{number % nodes}"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}, "spec": spec}
        await api.send("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", json.dumps(body).encode())

    await all_of(node, range(nodes))
    await all_of(pod, range(pods))


async def measured(server: Server, trusted: Path, rate: int, seconds: float, *, judges: bool) -> Measured:
    """Warm a server up, and send it the load that counts."""
    await until_answered(server.url, trusted)
    await load(server.url, trusted, rate, WARM_UP_S)
    if not judges:
        return Measured(await load(server.url, trusted, rate, seconds), None, server.memory_mb)
    seconds_before, count_before = await server.judged()
    found = await load(server.url, trusted, rate, seconds)
    seconds_after, count_after = await server.judged()
    return Measured(found, (seconds_after - seconds_before) / (count_after - count_before), server.memory_mb)


async def while_killed(
    api: Api, kubectl: Kubectl, server: ApiServer, replicas: Sequence[Server], rate: int, seconds: float
) -> Killed:
    """Kill the first replica in the middle of a load that goes through the API server."""
    alive = [replica.port for replica in replicas]
    async with balancer(alive) as port:
        kubectl.apply(configuration(server, port))
        await asyncio.sleep(2.0)  # the API server reads its webhooks from a watch
        lost = let_through = 0

        async def send(number: int) -> None:
            nonlocal lost, let_through
            is_bad = number % BAD == 0
            raw = raw_job(f"job-{number}", **({"extraArgs": TYPO} if is_bad else {}))
            raw["metadata"] = {"name": f"job-{number}", "namespace": NAMESPACE}
            try:
                await api.send("POST", f"{RLJOBS}?dryRun=All", json.dumps(raw).encode())
            except RuntimeError:
                lost += not is_bad
            else:
                let_through += is_bad

        async def kill() -> None:
            await asyncio.sleep(seconds / 2)
            replicas[0].kill()
            await asyncio.sleep(UNTIL_REMOVED_S)
            alive.remove(replicas[0].port)

        await asyncio.gather(at_times(send, rate, seconds), kill())
    total = int(rate * seconds)
    bad = len(range(0, total, BAD))
    return Killed(total - bad, lost, bad, let_through)


def configuration(server: ApiServer, port: int) -> Manifest:
    """Return the chart's configuration for a server on this machine."""
    chart = rendered("--set", "webhook.enabled=true", "--set", f"namespaces={{{NAMESPACE}}}")
    (found,) = (each for name, each in chart.items() if name.startswith("ValidatingWebhookConfiguration/"))
    bundle = base64.b64encode(server.authority.own.certificate.read_bytes()).decode()
    for hook in found["webhooks"]:
        hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/validate", "caBundle": bundle}
    return found


@asynccontextmanager
async def balancer(ports: Sequence[int]) -> AsyncIterator[int]:
    """Pass connections on as a Service does: to any of its endpoints, also to one that has just died."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", random.choice(ports))
        except OSError:
            writer.close()
            return
        with suppress(asyncio.CancelledError):  # at the end of the benchmark
            await asyncio.gather(pump(reader, there[1]), pump(there[0], writer), return_exceptions=True)

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield running.sockets[0].getsockname()[1]
    finally:
        running.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction of a connection until it ends."""
    try:
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()


def shown(rate: int, found: dict[str, Measured], killed: Killed) -> list[str]:
    """Return the figures as text."""
    lines = [f"\nadmission, {rate} reviews/s at fixed times [ms]"]
    for name, each in found.items():
        figures = ", ".join(f"{name} {each.load.percentile(share):.1f}" for name, share in QUANTILES)
        rules = "" if each.judging_s is None else f"; our rules and arithmetic {each.judging_s * 1000:.2f} on average"
        lines.append(f"  {name}: {figures}; failed {each.load.failed}{rules}; memory {each.memory_mb:.0f} MB")
    return [
        *lines,
        f"  a replica killed, {rate // THROUGH_THE_API_SERVER} requests/s through the API server: {killed.lost} of "
        f"{killed.good} good jobs lost, {killed.let_through} of {killed.bad} bad ones let through",
    ]
