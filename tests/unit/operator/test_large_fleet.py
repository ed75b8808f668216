"""Thousands of jobs of thousands of people wait, and Prometheus scrapes: the operator stays small and its loop runs."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from rljob_operator.identity import Manifest
from support.operator.operator_world import raw_job
from support.operator.small_api_server import SmallApiServer
from support.waiting import becomes_true

TESTS = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "support.operator.measured_operator")
OPTIONS = (
    *("--lease-namespace=ops", "--lease=rljob", "--identity=me", "--port=0", "--image=rljob/trainer:test"),
    *('--storage={"emptyDir": {}}', "--service-url=http://127.0.0.1:9/{namespace}/{service}"),
)
NODES = 8
MOST_MIB = 300
LONGEST_STOP_S = 0.25
STAGES = 20
"""in which the jobs are counted, with a scrape after each"""


def node(number: int) -> Manifest:
    free = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "1Ti", "pods": "110"}
    status = {"allocatable": free, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"}, "spec": {}, "status": status}


def fleet(jobs: int, namespaces: int) -> SmallApiServer:
    api = SmallApiServer(*map(node, range(NODES)))
    for number in range(jobs):
        raw = raw_job(f"job-{number}", runtime={"device": "Gpu"})
        raw["metadata"].update(namespace=f"team-{number % namespaces}", uid=f"7f3a1c00-0000-4000-8000-{number:012d}")
        api.put(raw)
    return api


@pytest.mark.parametrize(
    ("jobs", "namespaces"),
    [(300, 200), pytest.param(5_000, 3_000, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])],
)
def test_a_large_fleet_costs_neither_memory_nor_the_loop(jobs: int, namespaces: int, tmp_path: Path) -> None:
    api, cost, log = fleet(jobs, namespaces), tmp_path / "cost", tmp_path / "log"

    def phases() -> Counter[str]:
        return Counter(each.get("status", {}).get("phase", "") for each in api.all("RLJob"))

    def port() -> str | None:
        found = re.search(r"action=serve port=(\d+)", log.read_text())
        return found[1] if found else None

    async def scenario() -> tuple[int, str]:
        page = ""
        async with api.serving(tmp_path) as kubeconfig, aiohttp.ClientSession() as session:
            with log.open("w") as written:
                command = [*PROGRAM, str(cost), f"--kubeconfig={kubeconfig}", *OPTIONS]
                running = subprocess.Popen(command, cwd=TESTS, stderr=written)
            try:
                await becomes_true(port)
                for stage in range(STAGES + 1):
                    await becomes_true(lambda wanted=jobs * stage // STAGES: phases()[""] <= jobs - wanted)
                    page = await (await session.get(f"http://127.0.0.1:{port()}/metrics")).text()
                running.send_signal(signal.SIGTERM)
                return await asyncio.to_thread(running.wait), page
            finally:
                running.kill()

    code, page = asyncio.run(scenario())
    found = json.loads(cost.read_text())
    print(found, phases(), f"a page of {len(page) / 2**20:.1f} MiB")

    assert code == 0, log.read_text()[-3_000:]
    assert phases()["Queued"] >= jobs - 8 * NODES
    assert phases().keys() == {"Queued", "Provisioning"}
    assert found["peak_mib"] < MOST_MIB
    assert found["stop_s"] < LONGEST_STOP_S
