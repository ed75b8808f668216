"""No program needs the search over logs to start: few of them ever read one, and it is code that is not Python's."""

import subprocess
import sys

import pytest

PROGRAMS = ("rljob_cli.main", "rljob_operator.process", "rljob_operator.webhook.server", "rljob_trainer.rundir.logs")


@pytest.mark.parametrize("module", PROGRAMS)
def test_a_program_starts_without_the_search(module: str):
    check = f"import sys; sys.modules['ahocorasick_rs'] = None; import {module}"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False).stderr == ""
