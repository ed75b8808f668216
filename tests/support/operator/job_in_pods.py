"""A tiny RLJob on a cluster with a real node: its files on the volume, and what can be seen of it from outside."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from local_cluster.kubectl import Kubectl
from local_cluster.project import CLAIM, Workspace
from support.trainer.tiny_models import tiny_llama
from support.trainer.whole_run import QUESTIONS, REWARD, manifest, merged

DEADLINE_S = 1200.0
POLL_S = 1.0
"""between two looks: each is a kubectl, which takes a tenth of a second of the cores that the job trains on"""
DATA = PurePosixPath("/data")
"""where the pods see model, questions and reward: of the operator's volume they see only the run's own directory"""
ENDED = ("Succeeded", "Failed", "Invalid")


class JobInPods:
    """One job; the volume is also a directory of this machine."""

    def __init__(
        self,
        kubectl: Kubectl,
        place: Workspace,
        name: str = "tiny",
        write_model: Callable[[Path], object] = tiny_llama,
        reward_file: str = REWARD,
        **sections: Any,
    ) -> None:
        """Put model, questions and reward on the volume, and apply the job; `sections` are merged into its spec."""
        self.kubectl = kubectl
        self.place = place
        self.name = name
        write_model(place.volume / "model")
        rows = [{"question": f"{n} + {n + 1} =", "answer": str(2 * n + 1)} for n in range(QUESTIONS)]
        (place.volume / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (place.volume / "tiny_reward.py").write_text(reward_file)
        runtime = {
            "env": {"PYTHONPATH": str(DATA)},
            "imagePullPolicy": "Never",
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}}],
            "volumeMounts": [{"name": "data", "mountPath": str(DATA), "readOnly": True}],
        }
        self.manifest = manifest(DATA / "model", DATA, **merged({"runtime": runtime}, sections))
        self.manifest["metadata"] = {"name": name, "namespace": place.namespace}
        # The operator's default volume and a directory of the job's own in it.
        del self.manifest["spec"]["checkpoint"]["directory"]
        kubectl.apply(self.manifest)

    def object(self) -> dict[str, Any]:
        return self.kubectl.get("rljob", self.name, "-n", self.place.namespace)

    @property
    def status(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.object().get("status", {})
        return found

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))

    @property
    def step(self) -> int:
        return int(self.status.get("progress", {}).get("step", 0))

    def until(self, holds: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
        """Wait for a condition; fail at once when the job has failed."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert self.phase not in ENDED[1:], self.report()
            assert time.monotonic() < deadline, self.report()
            time.sleep(POLL_S)

    def succeed(self, timeout_s: float = DEADLINE_S) -> None:
        """Wait for its success."""
        self.until(lambda: self.phase == "Succeeded", timeout_s)

    def goes_on(self) -> None:
        """Wait for two more steps."""
        wanted = self.step + 2
        self.until(lambda: self.step >= wanted)

    def change(self, spec: Mapping[str, Any]) -> None:
        """Merge this into the spec."""
        patch = json.dumps({"spec": spec})
        self.kubectl("patch", "rljob", self.name, "-n", self.place.namespace, "--type=merge", f"--patch={patch}")

    def pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.kubectl.get("pods", "-n", self.place.namespace)["items"]
        return found

    def pods_of(self, group: str) -> list[str]:
        """Return the names of the pods of a group of the RayCluster: `headgroup`, `workers`, `trainer` or `rollout`."""
        return [pod["metadata"]["name"] for pod in self.pods() if pod["metadata"]["labels"]["ray.io/group"] == group]

    def nodes_of(self, group: str) -> set[str]:
        """Return the names of the nodes on which a group of the RayCluster has pods."""
        return {pod["spec"]["nodeName"] for pod in self.pods() if pod["metadata"]["labels"]["ray.io/group"] == group}

    def evict(self, pod: str) -> None:
        """Evict a pod through the API, as `kubectl drain` does."""
        namespace = self.place.namespace
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
        self.kubectl("create", f"--raw={path}", "-f", "-", given=json.dumps(eviction))

    def inside(self, pod: str, script: str) -> str:
        """Run a shell script in a pod."""
        return self.kubectl("exec", pod, "-n", self.place.namespace, "--", "bash", "-lc", script)

    @property
    def journal(self) -> list[dict[str, Any]]:
        return self._lines("journal.jsonl")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the run's events of a kind."""
        return [event for event in self._lines("events.jsonl") if event["kind"] == kind]

    def _lines(self, file: str) -> list[dict[str, Any]]:
        (path,) = self.place.volume.glob(f"{self.place.namespace}/{self.name}/{file}")
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]]

    @property
    def attempts(self) -> list[dict[str, Any]]:
        return list(self.status.get("attempts", []))

    @property
    def commits(self) -> list[int]:
        """Steps of all saves, in the order of the journal."""
        return [record["step"] for record in self.journal if record["event"] == "committed"]

    def checkpoints(self) -> list[str]:
        found = self.place.volume.glob(f"{self.place.namespace}/{self.name}/checkpoints/iter_*")
        return sorted(path.name for path in found)

    def report(self) -> str:
        """Return what a user would look at when it does not go on."""
        described = self.kubectl("describe", "rljob", self.name, "-n", self.place.namespace)
        logs = sorted(self.place.volume.glob(f"{self.place.namespace}/{self.name}/logs/*"))
        tails = [f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in logs]
        pods = self.kubectl("get", "pods", "-n", self.place.namespace, "-o", "wide")
        return "\n".join([described, pods, *tails])
