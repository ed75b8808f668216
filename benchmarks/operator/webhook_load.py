"""A load on a validating webhook: requests come at fixed times, whether the server keeps up or not."""

import asyncio
import base64
import gc
import json
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from arena import NAMESPACE

from local_cluster.binaries import binary
from support.operator.operator_world import raw_job

CONNECTIONS = 32
"""as few as an API server has to a webhook"""


@dataclass(frozen=True)
class Load:
    """What a load has met."""

    latencies_s: Sequence[float]
    failed: int
    """requests without an answer, or without the answer `allowed`"""

    def percentile(self, share: float) -> float:
        """Return the latency that this share of requests stays below [ms]."""
        return sorted(self.latencies_s)[min(len(self.latencies_s) - 1, int(share * len(self.latencies_s)))] * 1000


async def at_times(send: Callable[[int], Awaitable[None]], rate: float, seconds: float) -> list[float]:
    """Call `send` at fixed times, and return the latency of each call from the time at which it was due [s]."""
    began, total = time.perf_counter() + 0.1, int(rate * seconds)

    async def one(number: int) -> float:
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await send(number)
        return time.perf_counter() - due

    gc.disable()  # a walk through the calls that wait takes a quarter of a second, and would count as a latency
    try:
        return list(await asyncio.gather(*(one(number) for number in range(total))))
    finally:
        gc.enable()


async def load(url: str, authority: Path, rate: int, seconds: float) -> Load:
    """Send reviews of valid jobs to a server, `rate` a second. `authority` is the certificate that it is checked with.

    vegeta sends them, in a process of its own: a client in Python would spend as much time on a request as the server.
    """
    vegeta = str(binary("vegeta", os.environ))
    with TemporaryDirectory() as directory:
        targets, results = Path(directory, "targets"), Path(directory, "results")
        targets.write_text("\n".join(map(partial(target, url), reviews())))
        attack = [vegeta, "attack", "-format=json", f"-targets={targets}", f"-output={results}", f"-rate={rate}"]
        connections = [f"-connections={CONNECTIONS}", f"-max-connections={CONNECTIONS}", f"-root-certs={authority}"]
        await output_of(*attack, f"-duration={seconds}s", *connections)
        answers = [json.loads(line) for line in (await output_of(vegeta, "encode", "-to=json", results)).splitlines()]
    return Load([each["latency"] / 1e9 for each in answers], sum(not is_allowed(each) for each in answers))


def target(url: str, body: bytes) -> str:
    """Return a request as vegeta reads it."""
    header = {"Content-Type": ["application/json"]}
    return json.dumps({"method": "POST", "url": url, "header": header, "body": base64.b64encode(body).decode()})


def is_allowed(answer: Mapping[str, Any]) -> bool:
    if answer["code"] != HTTPStatus.OK:
        return False
    return json.loads(base64.b64decode(answer["body"]))["response"]["allowed"] is True


async def output_of(*command: str | Path) -> bytes:
    """Return what a program prints. Raises RuntimeError if it fails."""
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    printed, errors = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} exited with {process.returncode}: {errors.decode()}")
    return printed


async def until_answered(url: str, authority: Path, patience_s: float = 60.0) -> None:
    """Wait for a server that allows valid jobs."""
    deadline = time.monotonic() + patience_s
    while (await load(url, authority, 5, 0.2)).failed:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{url} does not answer")
        await asyncio.sleep(0.5)


def reviews() -> list[bytes]:
    """Return requests as an API server sends them: jobs of several sizes."""
    kind = {"group": "rljob.dev", "version": "v1alpha1"}
    found = []
    for engines in (1, 2, 4, 8):
        for steps in (10, 100, 1000, 5000, 9000):
            raw = raw_job(training={"steps": steps}, rollout={"engines": engines}, runtime={"device": "Gpu"})
            request = {
                "uid": "u",
                "operation": "CREATE",
                "namespace": NAMESPACE,
                "dryRun": False,
                "object": raw,
                "kind": {**kind, "kind": "RLJob"},
                "resource": {**kind, "resource": "rljobs"},
                "name": raw["metadata"]["name"],
                "userInfo": {"username": "benchmark", "uid": "", "groups": []},
                "oldObject": None,
                "options": None,
            }
            review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
            found.append(json.dumps(review).encode())
    return found
