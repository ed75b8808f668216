"""Processes that die or hang are named in their step and replaced. See `docs/sabotages.md`."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rljob_api.exits import Exit
from support.trainer.sabotaged_run import Prepare
from support.trainer.whole_run import PROMPTS_PER_STEP, QUESTIONS, WholeRun, uids

pytestmark = pytest.mark.timeout(900)

EPOCHS = 200
"""of questions: more than will be asked"""


def part(run: WholeRun, name: str) -> psutil.Process:
    """Return the process of SGLang with a name that begins so."""
    (found,) = [process for process in run.processes() if process.name().startswith(f"sglang::{name}")]
    return found


def returned(run: WholeRun) -> list[dict[str, Any]]:
    """Return the failures of engines that are over."""
    return [record for record in run.records("engine") if record["return_seconds"] is not None]


def test_processes_that_die_or_hang_are_named_in_their_step_and_replaced(prepare: Prepare, sure_model: Path) -> None:
    run = prepare(
        sure_model,
        training={"steps": EPOCHS * QUESTIONS // PROMPTS_PER_STEP},
        recovery={"healthTimeoutSeconds": 3, "healthFailures": 2},
        checkpoint={"interval": 100},
    )
    run.start()
    run.until(lambda: run.steps() >= 2)

    verb = [sys.executable, "-m", "rljob_cli.main", "run", str(run.manifest)]
    second = subprocess.run(verb, cwd=run.directory, capture_output=True, text=True, timeout=120, check=False)
    assert second.returncode == Exit.IN_USE, second.stderr
    assert str(run.run_directory) in second.stderr + second.stdout

    step = run.steps()
    part(run, "router").kill()
    run.until(lambda: run.steps() >= step + 2)
    assert re.search(r"ERROR .* router action=restart reason=the server ended with -9", run.log())

    killed_in = run.steps()
    part(run, "sched").kill()
    run.until(lambda: len(returned(run)) == 1)
    killed = returned(run)[0]
    assert (killed["engine"], killed["cause"]) == ("engine-0", "ProcessExited")
    assert killed["detect_seconds"] < 2
    assert killed["step"] <= killed_in + 1

    run.until(lambda: run.steps() >= killed["step"] + 2)
    hung_in = run.steps()
    os.kill(part(run, "sched").pid, signal.SIGSTOP)
    run.until(lambda: len(returned(run)) == 2)
    hung = returned(run)[1]
    assert (hung["engine"], hung["cause"]) == ("engine-0", "Unresponsive")
    assert "no answer within 3 s" in hung["error"]
    assert hung["step"] <= hung_in + 1

    run.until(lambda: run.steps() >= hung["step"] + 2)
    run.interrupt()
    assert run.end() == Exit.PREEMPTED, run.output
    assert run.left_behind() == []
    asked = [uid for record in run.journal if record["event"] == "consumed" for uid in record["prompts"]]
    assert asked == uids(epochs=EPOCHS, rows=QUESTIONS)[: len(asked)], "nothing was lost and nothing came twice"
