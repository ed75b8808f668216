"""No program needs the doctor to start: few of them ever read a log, and its catalogue takes a second to read."""

import subprocess
import sys

import pytest

PROGRAMS = ("rljob_cli.main", "rljob_cli.cluster.verbs", "rljob_operator.__main__", "rljob_operator.webhook.__main__")


@pytest.mark.parametrize("module", (*PROGRAMS, "rljob_trainer.driver"))
def test_a_program_starts_without_the_doctor(module: str):
    check = f"import sys; sys.modules['rljob_doctor'] = sys.modules['ahocorasick_rs'] = None; import {module}"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False).stderr == ""
