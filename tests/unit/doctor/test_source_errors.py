"""The error messages of the programs that runs use, as they stand in their sources, get the right diagnosis."""

from pathlib import Path

import pytest

from rljob_doctor.catalogue import parsed
from rljob_doctor.diagnosis import diagnose
from rljob_doctor.scan import scan

FILE = Path(__file__).parent / "source_errors.yaml"
ROWS = [(program, *row) for program, rows in parsed(FILE.read_text("utf-8")).items() for row in rows]


def log_of(frame: str | None, line: str) -> str:
    if frame is None:
        return f"{line}\n"
    path, name = frame.split(" in ")
    place = f"/usr/lib/python3/site-packages/{path}"
    return f'Traceback (most recent call last):\n  File "{place}", line 12, in {name}\n    it_fails()\n{line}\n'


@pytest.mark.parametrize("program", sorted({row[0] for row in ROWS}))
def test_errors_of_the_sources_are_diagnosed(program: str):
    wrong = []
    for _, code, frame, line in (row for row in ROWS if row[0] == program):
        found = diagnose([scan("log", log_of(frame, line).encode())]).findings
        if [each.failure.code for each in found[:1]] != [code]:
            wrong.append((code, line, [each.failure.code for each in found]))
    assert wrong == []


def test_an_optimizer_of_another_layout_is_found_below_the_loading_of_a_checkpoint():
    place = "/root/Megatron-LM/megatron"
    log = (
        "Traceback (most recent call last):\n"
        f'  File "{place}/training/checkpointing.py", line 1, in load_checkpoint\n'
        f'  File "{place}/core/optimizer/distrib_optimizer.py", line 2, in load_parameter_state_from_dp_zero\n'
        "AssertionError: Number of unpadded elements must be same in current run (4) and checkpoint (8)\n"
    )
    assert diagnose([scan("log", log.encode())]).findings[0].failure.code == "CheckpointLayout"
