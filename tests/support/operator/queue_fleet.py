"""Many jobs for few GPUs on a real API server with the real KubeRay: who held what at each moment, from watches."""

import asyncio
import json
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from aiohttp import web

from local_cluster.kubectl import Kubectl, Manifest
from support.operator.fake_head import FakeHeads
from support.operator.operator_world import raw_job

GPU = "nvidia.com/gpu"
SIZES = ((1, 1), (1, 1), (2, 1), (4, 1), (1, 2), (4, 2), (8, 1))
"""(GPUs of a pod, pods) of jobs"""
QUEUE = "gpus"
"""name of the LocalQueue"""
CLIENTS = 20
JSON = {"Content-Type": "application/json"}


class ShortLivedHeads(FakeHeads):
    """Drivers that train for some seconds, and end well."""

    def __init__(self, life_s: float) -> None:
        super().__init__()
        self.life_s = life_s

    async def _submit(self, request: web.Request) -> web.Response:
        answer = await super()._submit(request)
        if answer.status == 200:
            asyncio.get_running_loop().call_later(self.life_s, self._head(request).end, 0)
        return answer


def fleet(
    number: int, sizes: Iterable[tuple[int, int]] = SIZES, seed: int = 7, queue: str | None = None
) -> list[Manifest]:
    """Return so many jobs, the same ones each time; `queue`: the LocalQueue of Kueue in which they wait."""
    draw, known = random.Random(seed), tuple(sizes)
    return [_job(f"job-{i:03}", *draw.choice(known), queue) for i in range(number)]


def _job(name: str, gpus: int, pods: int, queue: str | None) -> Manifest:
    sections: dict[str, Any] = {
        "placement": "Colocated",
        "runtime": {"device": "Gpu"},
        "rollout": {"engines": gpus * pods},
        "training": {"gpusPerNode": gpus, "nodes": pods},
        **({} if queue is None else {"scheduling": {"queue": queue}}),
    }
    return raw_job(name, **sections)


def quota(namespace: str, gpus: int) -> Manifest:
    """Return a ResourceQuota of so many GPUs."""
    hard = {f"requests.{GPU}": str(gpus)}
    metadata = {"name": "gpus", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}


def queue_of_kueue(namespace: str, gpus: int) -> list[Manifest]:
    """Return a LocalQueue of so many GPUs, and of more CPU and memory than anybody needs."""
    plenty = [{"name": "cpu", "nominalQuota": "1M"}, {"name": "memory", "nominalQuota": "1Pi"}]
    of_flavor = {"name": "any", "resources": [*plenty, {"name": GPU, "nominalQuota": gpus}]}
    covered = {"coveredResources": ["cpu", "memory", GPU], "flavors": [of_flavor]}
    api = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    whole = {"namespaceSelector": {}, "resourceGroups": [covered]}
    return [
        {**api, "kind": "ResourceFlavor", "metadata": {"name": "any"}, "spec": {}},
        {**api, "kind": "ClusterQueue", "metadata": {"name": "all"}, "spec": whole},
        {
            **api,
            "kind": "LocalQueue",
            "metadata": {"name": QUEUE, "namespace": namespace},
            "spec": {"clusterQueue": "all"},
        },
    ]


def apply_at_once(kubectl: Kubectl, namespace: str, jobs: Iterable[Manifest]) -> None:
    """Create jobs by twenty clients at once."""

    def create(job: Manifest) -> None:
        body = {**job, "metadata": {"name": job["metadata"]["name"], "namespace": namespace}}
        kubectl("create", "-f", "-", given=json.dumps(body))

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(create, jobs))


@dataclass
class Seen:
    """What the watches have shown."""

    pods: dict[str, tuple[str, int, bool]] = field(default_factory=dict)
    """job, GPUs, and whether it is on a node, of each pod that exists"""
    held: dict[str, int] = field(default_factory=dict)
    """GPUs of each job that holds a reservation"""
    waiting: set[str] = field(default_factory=set)
    created: dict[str, float] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    first: list[str] = field(default_factory=list)
    """jobs in the order of their first reservations"""
    ended: set[str] = field(default_factory=set)
    most_gpus_of_pods: int = 0
    most_gpus_held: int = 0
    partial_since: dict[str, float] = field(default_factory=dict)
    longest_partial_s: float = 0.0
    longest_wait_s: float = 0.0
    busy_s: float = 0.0
    """how long somebody waited"""
    held_gpu_s: float = 0.0
    """GPUs held, and GPUs of pods on nodes, summed over that time"""
    bound_gpu_s: float = 0.0
    ending_gpu_s: float = 0.0
    """the same of the pods of jobs without a reservation"""


class Watches:
    """Follows the pods and the RLJobs of a namespace."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.seen = Seen()
        self._lock = threading.Lock()
        self._at = time.monotonic()
        core = f"/api/v1/namespaces/{namespace}/pods"
        ours = f"/apis/rljob.dev/v1alpha1/namespaces/{namespace}/rljobs"
        self._streams = [self._stream(kubectl, core, self._pod), self._stream(kubectl, ours, self._job)]

    def close(self) -> None:
        for stream in self._streams:
            stream.kill()
            stream.wait()

    def _stream(self, kubectl: Kubectl, path: str, take: Callable[[str, Manifest], None]) -> "subprocess.Popen[bytes]":
        version = json.loads(kubectl("get", "--raw", f"{path}?limit=1"))["metadata"]["resourceVersion"]
        where = f"{path}?watch=1&resourceVersion={version}&timeoutSeconds=3600"
        command = [str(kubectl.program), f"--kubeconfig={kubectl.kubeconfig}", "get", "--raw", where]
        stream = subprocess.Popen(command, stdout=subprocess.PIPE)
        threading.Thread(target=self._read, args=(stream, take), daemon=True).start()
        return stream

    def _read(self, stream: "subprocess.Popen[bytes]", take: Callable[[str, Manifest], None]) -> None:
        assert stream.stdout is not None
        for line in stream.stdout:
            event = json.loads(line)
            with self._lock:
                self._pass_time()
                take(event["type"], event["object"])

    def _pass_time(self) -> None:
        now, seen = time.monotonic(), self.seen
        if seen.waiting:
            passed_s = now - self._at
            seen.busy_s += passed_s
            seen.held_gpu_s += passed_s * sum(seen.held.values())
            ending = sum(gpus for job, gpus, is_bound in seen.pods.values() if is_bound and job not in seen.held)
            seen.ending_gpu_s += passed_s * ending
            seen.bound_gpu_s += passed_s * sum(gpus for _, gpus, is_bound in seen.pods.values() if is_bound)
        self._at = now

    def _pod(self, kind: str, raw: Manifest) -> None:
        name, seen = raw["metadata"]["name"], self.seen
        gpus = sum(int(each.get("resources", {}).get("requests", {}).get(GPU, 0)) for each in raw["spec"]["containers"])
        job = raw["metadata"]["labels"].get("rljob.dev/job", "")
        if kind == "DELETED" or raw["status"].get("phase") in ("Succeeded", "Failed"):
            seen.pods.pop(name, None)
        else:
            seen.pods[name] = (job, gpus, "nodeName" in raw["spec"])
        seen.most_gpus_of_pods = max(seen.most_gpus_of_pods, sum(each[1] for each in seen.pods.values()))
        self._gang(job)

    def _gang(self, job: str) -> None:
        """Note how long a job has had a place for some of its pods with GPUs and not for others."""
        seen = self.seen
        bound = [is_bound for name, gpus, is_bound in seen.pods.values() if name == job and gpus]
        if any(bound) and not all(bound):
            since = seen.partial_since.setdefault(job, time.monotonic())
            seen.longest_partial_s = max(seen.longest_partial_s, time.monotonic() - since)
        else:
            since = seen.partial_since.pop(job, time.monotonic())
            seen.longest_partial_s = max(seen.longest_partial_s, time.monotonic() - since)

    def _job(self, kind: str, raw: Manifest) -> None:
        name, seen, status = raw["metadata"]["name"], self.seen, raw.get("status", {})
        seen.created[name] = datetime.fromisoformat(raw["metadata"]["creationTimestamp"]).timestamp()
        seen.gpus[name] = raw["spec"]["training"]["gpusPerNode"] * raw["spec"]["training"].get("nodes", 1)
        conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
        if conditions.get("QuotaReserved") == "True":
            if name not in seen.held and name not in seen.first:
                seen.first.append(name)
                seen.longest_wait_s = max(seen.longest_wait_s, time.time() - seen.created[name])
            seen.held[name] = seen.gpus[name]
        else:
            seen.held.pop(name, None)
        (seen.waiting.add if status.get("phase") in (None, "Queued") else seen.waiting.discard)(name)
        if status.get("phase") in ("Succeeded", "Failed"):
            seen.ended.add(name)
        seen.most_gpus_held = max(seen.most_gpus_held, sum(seen.held.values()))


def out_of_order(seen: Seen) -> list[tuple[str, str]]:
    """Return (later, earlier) where a job got room before one of its size that had been created seconds before it."""
    places = {name: place for place, name in enumerate(seen.first)}
    return [
        (late, early)
        for late in seen.first
        for early in seen.first
        if seen.gpus[late] == seen.gpus[early]
        and seen.created[early] + 2 < seen.created[late]
        and places[late] < places[early]
    ]
