"""`rljob run` with real processes: a supervisor, a guard, and a driver that serves the real control protocol."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rljob_trainer.processes.leftovers import RUN_VARIABLE, find, run_id, scratch

SUPERVISED = Path(__file__).parents[2] / "support" / "cli" / "supervised.py"

MANIFEST = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {{name: supervised}}
spec:
  model: {{checkpoint: somewhere}}
  data:
    train: {{jsonl: sums.jsonl}}
    heldOut: {{jsonl: other-sums.jsonl}}
  reward: {{kind: ExactMatch}}
  rollout: {{promptsPerStep: 4, sampling: {{maxNewTokens: 4}}}}
  training: {{steps: 3, precision: fp32, optimizer: {{learningRate: 1.0e-5}}}}
  checkpoint: {{directory: {directory}}}
  recovery: {{driverRestarts: 1, startTimeoutSeconds: 20}}
  runtime: {{device: Cpu}}
"""


def command(plan: str, manifest: Path, stall_s: float = 30.0) -> list[str]:
    return [sys.executable, str(SUPERVISED), plan, str(manifest), str(stall_s)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}


class Supervised:
    """A supervisor that runs, and what it has printed."""

    def __init__(self, plan: str, directory: Path, stall_s: float) -> None:
        self.directory = directory
        self.lines: list[str] = []
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        directory.mkdir(exist_ok=True)
        manifest = directory.with_suffix(".yaml")
        manifest.write_text(MANIFEST.format(directory=directory))
        self.process = subprocess.Popen(
            command(plan, manifest, stall_s),
            stdout=subprocess.PIPE,
            stderr=(directory / "supervisor.log").open("a"),
            text=True,
            env=environment(),
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.strip())
        self._queue.put(None)

    def until(self, beginning: str, timeout_s: float = 20) -> str:
        """Return the first further line that begins so."""
        deadline = time.monotonic() + timeout_s
        while (line := self._queue.get(timeout=deadline - time.monotonic())) is not None:
            self.lines.append(line)
            if line.startswith(beginning):
                return line
        raise AssertionError(f"ended before {beginning!r}: {self.lines}; {self.log}")

    def driver_pid(self, attempt: int = 1) -> int:
        self.until(f"state Running {attempt}")
        return int((self.directory / "driver.pid").read_text())

    def end(self, timeout_s: float = 30) -> int:
        """Return the exit code."""
        code = self.process.wait(timeout_s)
        while (line := self._queue.get(timeout=5)) is not None:
            self.lines.append(line)
        return code

    @property
    def notes(self) -> list[str]:
        return [line.removeprefix("note ") for line in self.lines if line.startswith("note ")]

    @property
    def log(self) -> str:
        return (self.directory / "supervisor.log").read_text()

    def records(self, name: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.directory / name).read_text().splitlines()]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[Supervised]]:
    """Starts supervisors, and ends what a failed test has left."""
    started: list[Supervised] = []

    def begin(plan: str, directory: Path = tmp_path / "run", stall_s: float = 30.0) -> Supervised:
        started.append(Supervised(plan, directory, stall_s))
        return started[-1]

    yield begin
    for supervised in started:
        supervised.process.kill()
        supervised.process.wait(10)
        wait_until(lambda directory=supervised.directory: not find(run_id(directory)), timeout_s=20)


def wait_until(is_so, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def test_a_run_that_ends_well_shows_what_came_out_and_leaves_nothing(start):
    run = start("finish")
    assert run.end() == 0, run.log
    assert run.notes[-1].startswith("held-out accuracy 0.10 -> 0.60 (greedy 0.05 -> 0.30), 3 steps, ")
    assert not (run.directory / "control.json").exists()
    assert not scratch(run_id(run.directory)).exists()
    assert find(run_id(run.directory)) == []


def test_a_driver_that_is_killed_is_started_again(start):
    run = start("crash,finish")
    assert run.end() == 0, run.log
    assert run.notes[0] == "attempt 1: killed by SIGKILL; restarting in 0 s"
    assert sorted(path.name for path in run.directory.glob("logs/driver*")) == [
        "driver-attempt-1.log",
        "driver-attempt-2.log",
    ]


def test_what_finished_steps_followed_is_not_named_as_the_end_of_an_attempt(start):
    run = start("recover,finish")
    assert run.end() == 0, run.log
    assert run.notes[0] == "attempt 1: killed by SIGKILL; restarting in 0 s"


def test_a_driver_that_always_dies_is_given_up(start):
    run = start("crash")
    assert run.end() == 8, run.log
    assert run.notes[1].startswith("killed by SIGKILL; attempts without a new checkpoint: 2; log: ")


def test_new_checkpoints_keep_a_run_going(start):
    run = start("save,save,finish")
    assert run.end() == 0, run.log


def test_bad_input_is_not_tried_again(start):
    run = start("input")
    assert run.end() == 9, run.log
    assert "is missing, invalid or fails" in run.notes[0]
    assert not (run.directory / "logs" / "driver-attempt-2.log").exists()


def test_an_error_that_the_driver_has_not_reported_is_read_in_its_log(start):
    run = start("error")
    assert run.end() == 9, run.log
    assert run.notes[0] == "MemoryError: spec.model: it is large"


def test_a_bad_manifest_starts_nothing(tmp_path):
    manifest = tmp_path / "bad.yaml"
    manifest.write_text(MANIFEST.format(directory=tmp_path / "run").replace("steps: 3", "steps: 0"))
    refused = subprocess.run(
        command("finish", manifest), env=environment(), capture_output=True, text=True, timeout=30, check=False
    )
    assert refused.returncode == 3
    assert refused.stdout.startswith("note spec.training.steps: 0 ")
    assert not (tmp_path / "run").exists()


def test_an_interrupt_lets_the_driver_save_and_end(start):
    run = start("drain")
    run.driver_pid()
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 7, run.log
    assert run.notes[0].startswith("saving after this step")


def test_a_second_interrupt_ends_at_once(start):
    run = start("hang")
    run.driver_pid()
    run.process.send_signal(signal.SIGINT)
    run.until("note saving")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.log


def test_a_driver_without_signs_of_life_is_killed_and_its_stacks_are_kept(start):
    run = start("hang,finish", stall_s=2.5)
    assert run.end() == 0, run.log
    assert run.notes[0].startswith("no progress for ")
    assert run.notes[0].endswith("in phase rollout")
    assert run.notes[1].startswith("attempt 1: no progress before the deadline")
    assert "in wait_for_ever" in (run.directory / "logs" / "driver-attempt-1.log").read_text()


def test_a_stopped_driver_counts_as_stalled(start):
    run = start("drain,finish", stall_s=2.5)
    os.kill(run.driver_pid(), signal.SIGSTOP)
    assert run.end() == 0, run.log
    assert run.notes[0].startswith("no progress for ")


def test_a_driver_whose_raylet_is_gone_is_started_again(start):
    run = start("ray,finish")
    assert run.end() == 0, run.log
    assert "raylet (pid " in run.notes[0]
    assert run.notes[1].startswith("attempt 1: a required process is gone")


def test_a_dead_engine_is_ordered_back_exactly_once_for_each_generation(start):
    run = start("engine")
    assert run.end() == 0, run.log
    assert [record["generation"] for record in run.records("orders.jsonl")] == [1, 2]
    assert run.notes[0] == "engine-0: restarted as generation 1 (killed by SIGKILL)"
    log = (run.directory / "logs" / "driver-attempt-1.log").read_text()
    assert log.count("action=restart") == 2


def test_a_directory_is_for_one_supervisor_at_a_time(start):
    first = start("drain")
    first.driver_pid()
    second = start("drain")
    assert second.end() == 75
    assert second.notes == [f"{first.directory}: already in use by `rljob run` with pid {first.process.pid}"]
    assert first.process.poll() is None


def test_another_directory_is_free(start, tmp_path):
    first = start("drain")
    driver = first.driver_pid()
    second = start("finish", tmp_path / "other")
    assert second.end() == 0, second.log
    assert psutil.pid_exists(driver)


def test_what_a_killed_supervisor_leaves_is_cleaned_before_anybody_can_start_again(start):
    first = start("drain")
    first.driver_pid()
    orphan = subprocess.Popen(["sleep", "60"], env={RUN_VARIABLE: run_id(first.directory)})
    first.process.kill()
    second = start("finish")
    assert second.end() == 0, second.log
    assert orphan.wait(10) in (-signal.SIGTERM, -signal.SIGKILL)
    assert second.notes[-1].startswith("held-out accuracy")


def test_nothing_outlives_a_killed_supervisor(start):
    run = start("drain")
    driver = run.driver_pid()
    stubborn = subprocess.Popen(
        [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"],
        env={RUN_VARIABLE: run_id(run.directory)},
        start_new_session=True,
    )
    run.process.kill()
    stubborn.wait(15)
    wait_until(lambda: not psutil.pid_exists(driver) and not scratch(run_id(run.directory)).exists())
    assert find(run_id(run.directory)) == []


def test_a_killed_guard_harms_nobody(start):
    run = start("drain")
    run.driver_pid()
    (guard,) = [
        child
        for child in psutil.Process(run.process.pid).children()
        if "rljob_trainer.processes.guard" in child.cmdline()
    ]
    guard.kill()
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 7, run.log
