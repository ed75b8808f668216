"""Ray nodes that come and go on this machine, labelled as KubeRay's pods are, and a driver started on them as in a
cluster: with RAY_ADDRESS, and no `rljob run` above it.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml
from ray.cluster_utils import Cluster

from rljob_api.control import ADDRESS_FILE, DRAIN, SCALE, STATUS, TOKEN_VARIABLE, EngineStatus, RunState, Scale, Status
from rljob_trainer.processes.leftovers import SHARED_MEMORY
from support.trainer.whole_run import QUESTIONS, REWARD, manifest

TOKEN = "a-secret"
STORE_BYTES = 80 * 2**20
DEADLINE_S = 600.0
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class RayPods:
    """A head without slots, and workers of one slot each in the groups `trainer` and `rollout`."""

    def __init__(self) -> None:
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False},
        )

    def add(self, group: str) -> Any:
        """A pod of a group joins."""
        labels = {"ray.io/node-group": group}
        return self.cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, labels=labels)

    def remove(self, node: Any) -> None:
        """A pod goes away."""
        self.cluster.remove_node(node)

    def stop(self) -> None:
        self.cluster.shutdown()


class PodDriver:
    """A driver on such a cluster, asked by the control protocol."""

    def __init__(self, model: Path, directory: Path, address: str, engines: int, **sections: Any) -> None:
        self.run_directory = directory / "run"
        self._shared_memory = set(SHARED_MEMORY.iterdir())
        rows = [{"question": f"{n} + {n + 1} =", "answer": str(2 * n + 1)} for n in range(QUESTIONS)]
        (directory / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (directory / "tiny_reward.py").write_text(REWARD)
        job = directory / "job.yaml"
        job.write_text(yaml.safe_dump(manifest(model, directory, placement="Disaggregated", **sections)))
        self._output = directory / "driver.log"
        arguments = ["--manifest", str(job), "--directory", str(self.run_directory), "--engines", str(engines)]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rljob_trainer.driver", *arguments],
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(directory), *(entry for entry in sys.path if entry)]),
                    "RAY_ADDRESS": address,
                    TOKEN_VARIABLE: TOKEN,
                },
                cwd=directory,
            )

    @property
    def log(self) -> str:
        return self._output.read_text()

    def engine_log(self, name: str) -> str:
        return (self.run_directory / "logs" / f"{name}.log").read_text()

    @property
    def journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_directory / "journal.jsonl").read_text().splitlines()]

    def status(self) -> Status:
        return Status.model_validate_json(self._ask("GET", STATUS))

    def engine(self, name: str) -> EngineStatus | None:
        return next((engine for engine in self.status().engines if engine.name == name), None)

    def scale(self, generation: int, engines: int) -> None:
        """Order this number of engines."""
        self._ask("PUT", SCALE, Scale(generation=generation, engines=engines).model_dump_json(by_alias=True))

    def drain(self) -> int:
        """Have it save and end; return its exit code."""
        self._ask("POST", DRAIN)
        return self.process.wait(DEADLINE_S)

    def until(self, holds: Callable[[Status], bool]) -> Status:
        """Wait until the driver says something."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            if (self.run_directory / ADDRESS_FILE).exists() and holds(status := self.status()):
                return status
            time.sleep(0.05)

    def steps(self, more: int) -> None:
        """Wait until so many more steps are done."""
        before = self.status().progress.step
        self.until(lambda status: status.progress.step >= before + more)

    def runs(self) -> None:
        self.until(lambda status: status.state is RunState.RUNNING)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def left_behind(self) -> list[str]:
        """Return SGLang's processes that this machine has by this run's model, and its files in shared memory."""
        mine = str(self.run_directory.parent)
        processes = [
            str(process)
            for process in psutil.process_iter(["cmdline"])
            if any(mine in word for word in process.info["cmdline"] or ())
        ]
        return [*processes, *map(str, set(SHARED_MEMORY.iterdir()) - self._shared_memory)]

    def _ask(self, method: str, path: str, body: str | None = None) -> bytes:
        url = json.loads((self.run_directory / ADDRESS_FILE).read_text())["url"]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(url + path, body and body.encode(), headers, method=method)
        with NO_PROXY.open(request, timeout=20) as answer:
            content: bytes = answer.read()
            return content
