"""A driver without training: a real process that serves the real control protocol, for tests of its supervisor.

`python fake_driver.py PLAN --manifest FILE --directory DIR --attempt N --origin ID`; PLAN is one behaviour for each
attempt, separated by commas; the last one is for all further attempts.

    finish   takes three steps and ends well
    crash    dies by SIGKILL after the first step, without a checkpoint
    recover  logs a failure, takes three steps all the same, then dies by SIGKILL
    save     saves a checkpoint of its own attempt's number, then dies by SIGKILL
    input    ends with BAD_INPUT
    error    ends with BAD_INPUT after an error that is only in its log
    drain    takes steps until it is asked to end
    hang     stops giving signs of life after the first step
    engine   loses its engine, and ends well when that has been restarted twice
    ray      has a child called `raylet`, which dies; then waits for ever
"""

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rljob_api.control import TOKEN_VARIABLE, EngineState, EngineStatus, Progress, RunState, SavedCheckpoint, Status
from rljob_api.exits import Exit
from rljob_trainer.control.orders import OrderBook
from rljob_trainer.control.server import ControlServer
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.processes.background import Background

STEP_S = 0.05
LONGEST_LIFE_S = 60.0


class FakeDriver:
    def __init__(self, directory: Path, attempt: int) -> None:
        self.directory = directory
        (directory / "driver.pid").write_text(str(os.getpid()))
        self.attempt = attempt
        self.status_store = StatusStore(Status(attempt=attempt, engines=(self.engine(EngineState.HEALTHY, 0),)))
        self.orders = OrderBook(self.status_store, self.restart, lambda engines: None)

    def engine(self, state: EngineState, generation: int) -> EngineStatus:
        error = "killed by SIGKILL" if state is EngineState.DEAD else None
        return EngineStatus(
            name="engine-0",
            state=state,
            since=time.time(),
            generation=generation,
            restarts=generation,
            last_error=error,
        )

    def restart(self, engine: str, generation: int, reason: str) -> None:
        self.append("orders.jsonl", engine=engine, generation=generation, reason=reason)
        self.status_store.update(engines=(self.engine(EngineState.STARTING, generation),))

    def append(self, name: str, **facts: object) -> None:
        with (self.directory / name).open("a") as file:
            file.write(json.dumps(facts) + "\n")

    def step(self, number: int) -> None:
        for phase in ("rollout", "train"):
            self.status_store.begin(phase)
            time.sleep(STEP_S / 2)
        self.append("events.jsonl", kind="step", step=number)
        progress = Progress(step=number, steps=3, last_step_seconds={"rollout": STEP_S / 2, "train": STEP_S / 2})
        self.status_store.update(state=RunState.RUNNING, progress=progress)

    def evaluate(self, step: int, accuracy: float) -> None:
        self.append("events.jsonl", kind="evaluation", step=step, sampled=accuracy, greedy=accuracy / 2, n=10)

    def behave(self, behaviour: str) -> Exit:
        act = getattr(self, f"_{behaviour}")
        result: Exit = act()
        return result

    def _finish(self) -> Exit:
        self.evaluate(0, 0.1)
        for number in (1, 2, 3):
            self.step(number)
        self.evaluate(3, 0.6)
        return Exit.OK

    def _crash(self) -> Exit:
        self.step(1)
        self.settle()
        os.kill(os.getpid(), signal.SIGKILL)
        return Exit.FAILED

    def _recover(self) -> Exit:
        logging.warning("ModuleNotFoundError: No module named 'deep_gemm'")
        for number in (1, 2, 3):
            self.step(number)
            self.settle()
        os.kill(os.getpid(), signal.SIGKILL)
        return Exit.FAILED

    def _save(self) -> Exit:
        self.status_store.update(checkpoint=SavedCheckpoint(step=self.attempt, path="somewhere", verified=True))
        return self._crash()

    def _input(self) -> Exit:
        return Exit.BAD_INPUT

    def _error(self) -> Exit:
        try:
            raise MemoryError("spec.model: it is large")
        except MemoryError:
            logging.exception("action=end")
        return Exit.BAD_INPUT

    def _drain(self) -> Exit:
        number = 1
        while not self.orders.requested:
            self.step(number)
            number += 1
        return Exit.PREEMPTED

    def _hang(self) -> Exit:
        self.step(1)
        self.status_store.begin("rollout")
        return self.wait_for_ever()

    def _engine(self) -> Exit:
        self.step(1)
        for generation in (0, 1):
            self.status_store.update(engines=(self.engine(EngineState.DEAD, generation),))
            self.until_generation(generation + 1)
        self.status_store.update(engines=(self.engine(EngineState.HEALTHY, 2),))
        self.settle()
        return Exit.OK

    def _ray(self) -> Exit:
        self.step(1)
        # Its name in the process table is what counts.
        raylet = self.directory / "raylet"
        raylet.symlink_to("/bin/sleep")
        child = subprocess.Popen([raylet, "60"])
        self.live(1.0)
        child.kill()
        self.live(LONGEST_LIFE_S)
        return Exit.FAILED

    def until_generation(self, generation: int) -> None:
        deadline = time.monotonic() + LONGEST_LIFE_S
        while self.status_store.status.engines[0].generation != generation:
            assert time.monotonic() < deadline, f"nobody restarted the engine as generation {generation}"
            self.live(0.05)

    def settle(self) -> None:
        """Leave the supervisor the time to read the last status, and to repeat orders if it does."""
        self.live(0.4)

    def live(self, seconds: float) -> None:
        """Give signs of life for so long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.status_store.begin("rollout")
            time.sleep(0.05)

    def wait_for_ever(self) -> Exit:
        time.sleep(LONGEST_LIFE_S)
        return Exit.FAILED


def main() -> Exit:
    parser = argparse.ArgumentParser()
    parser.add_argument("plan")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--origin", required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    plan = options.plan.split(",")
    driver = FakeDriver(options.directory, options.attempt)
    with Background() as background:
        server = ControlServer(
            driver.status_store, driver.orders, lambda: ("text/plain", b""), os.environ[TOKEN_VARIABLE]
        )
        background.run(server.start(options.directory), timeout_s=10)
        code = driver.behave(plan[min(options.attempt, len(plan)) - 1])
        background.run(server.close(), timeout_s=10)
    return code


if __name__ == "__main__":
    sys.exit(main())
