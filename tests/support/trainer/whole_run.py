"""`rljob run` on a tiny model: the manifest, the process, and what it leaves in its directory."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from rljob_trainer.data.prompts import order
from rljob_trainer.processes.leftovers import SHARED_MEMORY, find, run_id, scratch

QUESTIONS = 48
HELD_OUT = 8
REWARD = '''\
"""What the tiny model is to learn: answers made of digits."""


def digits(question, response, label, metadata):
    return sum(character.isdigit() for character in response) / max(1, len(response))
'''
ALGORITHM = '''\
"""An algorithm of a user's own, with an objective of a user's own."""

from rljob_trainer.algorithms.algorithm import Algorithm
from rljob_trainer.algorithms.reinforce_plus_plus import returns_whitened
from rljob_trainer.learners.objectives.objective import Surrogate


def loss(responses, settings):
    ratio_R = (responses.logprobs_R - responses.old_logprobs_R).exp()
    return Surrogate(-ratio_R * responses.advantages_R, ratio_R, ratio_R != ratio_R)


def own(settings):
    return Algorithm(returns_whitened, objective="tiny_algorithm:loss")
'''
PROMPTS_PER_STEP = 4
DEADLINE_S = 240.0


def manifest(model: Path, directory: Path, **sections: Any) -> dict[str, Any]:
    """Return a job that the tiny model does in seconds; `sections` are merged into its spec."""
    spec: dict[str, Any] = {
        "model": {"checkpoint": str(model)},
        "data": {
            "train": {"jsonl": str(directory / "questions.jsonl")},
            "heldOut": {"jsonl": str(directory / "questions.jsonl"), "limit": HELD_OUT},
        },
        "reward": {"kind": "Python", "function": "tiny_reward:digits"},
        "rollout": {
            "promptsPerStep": PROMPTS_PER_STEP,
            "samplesPerPrompt": 8,
            "contextLength": 64,
            "sampling": {"maxNewTokens": 8},
        },
        "training": {"steps": 6, "precision": "fp32", "optimizer": {"learningRate": 5.0e-3}},
        "checkpoint": {"directory": str(directory / "run"), "interval": 2},
        "evaluation": {"interval": 100},
        "recovery": {"healthIntervalSeconds": 1, "healthTimeoutSeconds": 20},
        "runtime": {"device": "Cpu", "tensorboard": False},
    }
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "tiny"},
        "spec": merged(spec, sections),
    }


def imitation(job: dict[str, Any]) -> dict[str, Any]:
    """Return the same job learning the answers of its questions, without what that has no use for."""
    spec = {name: section for name, section in job["spec"].items() if name != "reward"}
    spec["rollout"] = {name: value for name, value in spec["rollout"].items() if name != "samplesPerPrompt"}
    return job | {"spec": spec | {"algorithm": {"name": "sft"}}}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with nested changes."""
    nested = {name: merged(base[name], change) for name, change in changes.items() if isinstance(base.get(name), dict)}
    return {**base, **changes, **nested}


class WholeRun:
    """One directory, in which `rljob run` may be started more than once."""

    def __init__(self, model: Path, directory: Path, **sections: Any) -> None:
        self.directory = directory
        self.run_directory = directory / "run"
        self.run_id = run_id(self.run_directory)
        rows = [{"question": f"{n} + {n + 1} =", "answer": str(2 * n + 1)} for n in range(QUESTIONS)]
        (directory / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (directory / "tiny_reward.py").write_text(REWARD)
        (directory / "tiny_algorithm.py").write_text(ALGORITHM)
        self.manifest = directory / "job.yaml"
        self.manifest.write_text(yaml.safe_dump(manifest(model, directory, **sections)))
        self.process: subprocess.Popen[bytes] | None = None
        self._shared_memory = set(SHARED_MEMORY.iterdir())

    def start(self) -> None:
        """Start the command; its output goes to `output.txt`."""
        path = os.pathsep.join([str(self.directory), *(entry for entry in sys.path if entry)])
        with (self.directory / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rljob_cli.main", "run", str(self.manifest)],
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": path},
                cwd=self.directory,
                start_new_session=True,
            )

    def end(self, timeout_s: float = DEADLINE_S) -> int:
        """Return the exit code."""
        assert self.process is not None
        return self.process.wait(timeout_s)

    def until(self, holds: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
        """Wait for a condition while the command runs."""
        assert self.process is not None
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def interrupt(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)

    def processes(self) -> list[psutil.Process]:
        """Return the living processes of the run below the command."""
        return find(self.run_id)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def kill_everything(self) -> None:
        """Kill the command and every process of its run, its guard too: nobody cleans up."""
        assert self.process is not None
        command = psutil.Process(self.process.pid)
        for process in {*command.children(recursive=True), command, *self.processes()}:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(10)

    def stop(self) -> None:
        """End what a failed test has left."""
        if self.process is not None and self.process.poll() is None:
            self.kill_everything()
        for process in find(self.run_id):
            process.kill()

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind; a line that is being written is not one yet."""
        path = self.run_directory / "events.jsonl"
        # Not splitlines: what a model says may hold other separators of lines.
        *lines, _ = path.read_text().split("\n") if path.exists() else [""]
        return [record for line in lines if (record := json.loads(line))["kind"] == kind]

    def steps(self) -> int:
        """Return how many steps are done."""
        return max((record["step"] for record in self.records("step")), default=0)

    @property
    def journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_directory / "journal.jsonl").read_text().splitlines()]

    @property
    def output(self) -> str:
        return (self.directory / "output.txt").read_text()

    def log(self, name: str = "driver-attempt-1.log") -> str:
        return (self.run_directory / "logs" / name).read_text()

    def metrics_address(self) -> str:
        """Return HOST:PORT of the Prometheus endpoint of the first driver, once it serves."""
        address = re.compile(r"action=serve metrics=http://(\S+)/metrics")
        logs = self.run_directory / "logs" / "driver-attempt-1.log"
        self.until(lambda: logs.exists() and address.search(logs.read_text()) is not None)
        found = address.search(logs.read_text())
        assert found is not None
        return found[1]

    def left_behind(self) -> list[str]:
        """Return processes, scratch files and shared memory that are there since the run began."""
        files = {path for path in (scratch(self.run_id),) if path.exists()}
        return [*map(str, find(self.run_id)), *map(str, files | set(SHARED_MEMORY.iterdir()) - self._shared_memory)]


def uids(seed: int = 0, epochs: int = 10, rows: int = QUESTIONS - HELD_OUT) -> list[str]:
    """Return the order in which an uninterrupted run issues its questions."""
    return [f"{epoch}:{row}" for epoch in range(epochs) for row in order(rows, seed, epoch)]


def expected_journal(
    steps: int, prompts_per_step: int, interval: int, uids: list[str], ahead: int = 0
) -> list[dict[str, Any]]:
    """Return the journal of a run that nothing has interrupted; rollouts are so many steps ahead."""
    records: list[dict[str, Any]] = []
    asked = [uids[step * prompts_per_step : (step + 1) * prompts_per_step] for step in range(steps)]
    issued = [{"event": "issued", "step": step, "prompts": prompts} for step, prompts in enumerate(asked)]
    for step in range(steps):
        records += issued[step + ahead : step + ahead + 1] if step else issued[: ahead + 1]
        records.append({"event": "consumed", "step": step, "prompts": asked[step]})
        done = step + 1
        if done == steps or done % interval == 0:
            records.append({"event": "committed", "step": done, "checkpoint": f"iter_{done:07d}"})
    return records


def without_commits(journal: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records that do not depend on when a run was saved."""
    return [record for record in journal if record["event"] != "committed"]


Finish = Callable[..., WholeRun]
"""takes a run to its end: a name for its directory, the model, and sections of its spec"""
