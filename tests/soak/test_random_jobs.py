"""Whole runs of jobs drawn at random: `make soak`, or one of them with RLJOB_SEED and -k.

Some are stopped and go on in another layout, and in some a process is killed: an engine, a rank, the router, the
driver, Ray's own, a reward's; whichever it is, the run does all its steps.
"""

import math
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from rljob_api.exits import Exit
from support.trainer.random_jobs import STEPS, Kill, RandomJob, job, write_files
from support.trainer.whole_run import WholeRun

SEED = int(os.environ.get("RLJOB_SEED", "0"))
JOBS = int(os.environ.get("RLJOB_JOBS", "40"))
DEADLINE_S = 400.0


@pytest.fixture
def drawn(request: pytest.FixtureRequest, tmp_path: Path) -> RandomJob:
    return job(random.Random(request.param), tmp_path)


@pytest.fixture
def run(drawn: RandomJob, tmp_path: Path) -> Iterator[WholeRun]:
    """The job before its start."""
    made = WholeRun(tmp_path / "model", tmp_path)
    write_files(tmp_path, drawn.model)
    made.manifest.write_text(yaml.safe_dump(drawn.manifest, sort_keys=False))
    yield made
    made.stop()


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize("drawn", [f"{SEED}.{n}" for n in range(JOBS)], indirect=True)
def test_a_job_drawn_at_random_does_all_its_steps(drawn: RandomJob, run: WholeRun) -> None:
    note = f"{drawn.model}\n{yaml.safe_dump(drawn.manifest, sort_keys=False)}\n{drawn.again}\n"
    run.start()
    if drawn.kill is not None:
        note += killed(drawn.kill, run)
    if drawn.again is not None:
        run.until(lambda: run.steps() >= 1, DEADLINE_S)
        run.interrupt()
        assert run.end(DEADLINE_S) in (Exit.PREEMPTED, Exit.OK), note + run.output
        run.manifest.write_text(yaml.safe_dump(drawn.again, sort_keys=False))
        run.start()
    assert run.end(DEADLINE_S) == Exit.OK, note + run.output
    assert run.left_behind() == [], note
    assert [record["step"] for record in run.records("step")] == list(range(1, STEPS + 1)), note
    not_finite = [
        (name, value)
        for record in run.records("step")
        for name, value in record.items()
        if isinstance(value, float) and not math.isfinite(value)
    ]
    assert not not_finite, note
    logs = {path.name: path.read_text(errors="replace") for path in (run.run_directory / "logs").glob("driver*")}
    if drawn.kill is None:
        assert not [name for name, text in logs.items() if "Traceback" in text], note + str(logs)


def killed(kill: Kill, run: WholeRun) -> str:
    """Kill a process when it is time, and return which it was."""
    run.until(lambda: run.steps() >= kill.after_step, DEADLINE_S)
    time.sleep(kill.seconds)
    processes = run.processes()
    if not processes:
        return "nothing was left to kill"
    victim = processes[int(kill.choice * len(processes))]
    try:
        note = f"killed {victim.name()}: {victim.cmdline()}\n"
        victim.kill()
    except psutil.NoSuchProcess:
        note = "the process to kill was gone"
    print(note)
    return note
