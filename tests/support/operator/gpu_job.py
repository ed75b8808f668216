"""A small job on the GPUs of one node or two, and the seconds between its events. `DEVICE=Cpu` rehearses without GPUs.

The sums, the reward and the random Qwen3 are data: nothing depends on what the model can do.
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from local_cluster.gpus import RESOURCE
from local_cluster.kubectl import Kubectl
from local_cluster.project import Workspace
from support.operator.job_in_pods import DATA, JobInPods
from support.trainer.tiny_models import tiny
from support.trainer.whole_run import PROMPTS_PER_STEP, expected_journal, merged, uids, without_commits

DEVICE = os.environ.get("DEVICE", "Gpu")
KILL = """python - <<'EOF'
import os
import psutil
found = [p for p in psutil.process_iter() if {words!r} in ' '.join([p.name(), *p.cmdline()]) and p.pid != os.getpid()]
min(found, key=lambda process: process.create_time()).kill()
EOF
"""
ENGINE, RANK, DRIVER = "sglang::sched", "ray::RankHost", "rljob_trainer.driver"
"""words in the command line of their processes"""
METRICS = """python - <<'EOF'
import urllib.request
print(urllib.request.urlopen('http://localhost:8644/metrics', timeout=10).read().decode())
EOF
"""
# One pod of a cloud with several nodes has no NVLink to another, and multicast can harm GPUs that others share.
NCCL = {
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
DEADLINE_S = 300.0
"""for one event; the first start, with all its kernels, took 211 s at most"""
GRACE_S = 20
"""for pods to end: a dead node is not waited for longer"""
ON_DEVICE: Mapping[str, Mapping[str, Any]] = {
    "Gpu": {
        "rollout": {"memoryFraction": 0.3},
        "training": {"precision": "bf16", "optimizer": {"learningRate": 1.0e-3}},
        "runtime": {"device": "Gpu", "env": {"PYTHONPATH": str(DATA), **NCCL}},
    },
    "Cpu": {
        "runtime": {
            "headResources": {"requests": {"cpu": "50m", "memory": "256Mi"}},
            "workerResources": {"requests": {"cpu": "50m", "memory": "256Mi"}},
        }
    },
}
REWARD = '''\
"""What the tiny model is to learn: answers made of digits. A step takes a second or two on any machine."""

import time

last = 0.0


def digits(question, response, label, metadata):
    global last
    if time.monotonic() - last > 0.5:
        time.sleep(1)
        last = time.monotonic()
    return sum(character.isdigit() for character in response) / max(1, len(response))
'''
DENSE = partial(tiny, "Qwen3ForCausalLM", hidden_size=256, intermediate_size=512, head_dim=64)
EXPERTS = partial(tiny, "Qwen3MoeForCausalLM", hidden_size=256, moe_intermediate_size=128, head_dim=64)
"""large enough for the kernels of GPUs"""
JOURNAL_EPOCHS = 400
RISE = 0.2
"""of the reward, in the steps of a test: on GPUs it rose by 0.99, and a step's own noise is below 0.05"""


class GpuJob(JobInPods):
    """A job that is timed from its creation on."""

    def __init__(
        self, kubectl: Kubectl, place: Workspace, name: str, model: Callable[..., object] = DENSE, **sections: Any
    ) -> None:
        """Apply it; `sections` are merged into its spec."""
        usual = merged(ON_DEVICE[DEVICE], {"scheduling": {"terminationGracePeriodSeconds": GRACE_S}})
        dtype = "bfloat16" if DEVICE == "Gpu" else "float32"
        self._began = self._last = time.monotonic()
        self._seconds: list[str] = []
        model = partial(model, dtype=dtype)
        super().__init__(kubectl, place, name, write_model=model, reward_file=REWARD, **merged(usual, sections))

    def until(self, holds: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
        """Wait for a condition as any job does, but not as long: time on GPUs is short."""
        super().until(holds, timeout_s)

    def mark(self, event: str) -> None:
        """Note the seconds since the last event, and print all of them."""
        now = time.monotonic()
        self._seconds.append(f"{event} {now - self._last:.1f}")
        self._last = now
        print(f"{now - self._began:7.1f} s  {self.name}: {' | '.join(self._seconds)}", flush=True)

    def trains(self, steps: int = 2) -> None:
        """Wait until it trains, and for its first steps."""
        self.until(lambda: self.phase == "Training")
        self.mark("apply to Training")
        self.until(lambda: self.step >= steps)
        self.mark(f"to step {steps}")

    def goes_on_after(self, event: str, is_seen: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
        """Wait until `is_seen`, then for a step after those that were done when the event happened."""
        before = self.step
        self.mark(event)
        self.until(is_seen, timeout_s)
        self.mark("to detected")
        self.until(lambda: self.phase == "Training" and self.step > before, timeout_s)
        self.mark("to the next step")

    def kill(self, words: str, group: str) -> None:
        """Kill the oldest process with these words in its command line, in the last pod of a group."""
        self.inside(sorted(self.pods_of(group))[-1], KILL.format(words=words))

    def groups_on(self, node: str) -> list[str]:
        """Return the groups of the RayCluster that have pods on a node."""
        return [group for group in ("headgroup", "trainer", "rollout") if node in self.nodes_of(group)]

    def node_to_lose(self) -> str:
        """Return the node that has a part of the job, without its head if possible."""
        (head,) = self.nodes_of("headgroup")
        others = (self.nodes_of("trainer") | self.nodes_of("rollout")) - {head}
        return min(others, default=head)

    def scale(self, engines: int) -> None:
        """Scale the engines with kubectl, and wait until so many serve, and for two steps."""
        self.kubectl("scale", f"rljob/{self.name}", f"--replicas={engines}", "-n", self.place.namespace)
        self.until(lambda: self.status["engines"]["ready"] == engines and len(self.pods_of("rollout")) == engines)
        self.mark(f"to engines {engines}")
        self.goes_on()

    def is_all_on(self, node: str) -> bool:
        """Return whether pods that are not on their way out are all on this node."""
        staying = [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]
        return {pod["spec"].get("nodeName", node) for pod in staying} == {node}

    def log_lines(self, words: str) -> list[str]:
        """Return the lines of all drivers' logs with these words."""
        logs = sorted(self.place.volume.glob(f"{self.place.namespace}/{self.name}/logs/driver-*.log"))
        return [line for log in logs for line in log.read_text(errors="replace").splitlines() if words in line]

    def assert_publications_were_verified(self, engines: int) -> None:
        """Each publication reached an engine that lived, some all of them, and no engine held other weights."""
        published = self.log_lines("action=publish version=")
        assert published, self.report()
        assert any(f" engines={engines} " in line for line in published), published[-5:]
        assert engines == 1 or not any(" engines=0 " in line for line in published), published
        assert self.log_lines("tensors differ") == []

    def assert_journal_is_exact(self, steps: int) -> None:
        """Each prompt was issued and consumed once, in its order. Saves depend on when it was interrupted."""
        due = expected_journal(steps, PROMPTS_PER_STEP, steps, uids(epochs=JOURNAL_EPOCHS))
        assert without_commits(self.journal) == without_commits(due)

    def assert_it_learned(self) -> None:
        """The reward of the last steps is above that of the first by more than noise."""
        rewards = [step["reward_mean"] for step in self.events("step")]
        first, last = (sum(some) / len(some) for some in (rewards[:3], rewards[-3:]))
        assert last > first + RISE, rewards

    def assert_telemetry_has(self, gpus: int) -> None:
        """Steps and metrics have each GPU of the job. GPUs are read every few seconds: not every step has values."""
        assert max(len(step.get("gpus", {})) for step in self.events("step")) == gpus
        shown = self.inside(self.pods_of("headgroup")[0], METRICS)
        assert shown.count("\nrljob_gpu_device_power_watts{") == gpus


def gpus_by_node(kubectl: Kubectl) -> dict[str, int]:
    """Return how many GPUs pods can be given on each node; a rehearsal has as many, and uses none."""
    nodes = kubectl.get("nodes")["items"]
    return {node["metadata"]["name"]: int(node["status"]["allocatable"].get(RESOURCE, 0)) for node in nodes}
