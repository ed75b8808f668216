"""The failure that ended an attempt, short enough for a status, and its way through a driver's output."""

import pytest

from rljob_api.known_failure import KnownFailure, without_line
from rljob_doctor.catalogue import catalogue
from rljob_doctor.diagnosis import EPISODE, diagnose
from rljob_doctor.known import LONGEST_EVIDENCE, known_failure, logged
from rljob_doctor.scan import scan
from support.tables import each_of

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.55 GiB. GPU 0 has a total capacity of 79 GiB"
NAN = "RuntimeError: Unexpected result nan (message='loss is NaN')"


def found(*lines: str) -> KnownFailure | None:
    return known_failure([scan("rank-0.log", "\n".join(lines).encode())])


def test_it_has_the_words_of_the_catalogue_and_the_line_that_shows_it():
    failure = found("fine", OOM)
    known = catalogue()["TrainOutOfMemory"]
    assert failure == KnownFailure("TrainOutOfMemory", known.title, known.remedy[0], f"rank-0.log: {OOM}")
    assert str(failure) == f"TrainOutOfMemory: {known.title}. {known.remedy[0]}"


def test_logs_without_a_known_failure_have_none():
    assert found("fine", "1 of 3 questions is answered") is None


def test_an_exception_without_an_entry_is_named_with_its_own_message():
    failure = found("fine", "ValueError: something of the user's")
    assert failure is not None
    assert (failure.code, failure.evidence) == ("PythonException", "rank-0.log: ValueError: something of the user's")


def test_what_is_only_likely_is_not_known():
    line = "gcs_placement.cc: The required resource is bigger than the maximum in the whole cluster, schedule failed."
    assert [each.is_likely for each in diagnose([scan("log", line.encode())]).findings] == [True]
    assert found(line) is None

    frames = 'Traceback (most recent call last):\n  File "/x/sglang/srt/models/qwen3.py", line 1, in load_weights'
    failure = found(frames, "KeyError: 'model.layers.0.mlp'")
    assert diagnose([scan("log", f"{frames}\nKeyError: 'model.layers.0.mlp'".encode())]).findings[0].is_likely
    assert failure is not None and (failure.code, failure.evidence[-20:]) == ("PythonException", "'model.layers.0.mlp'")


def test_a_failure_that_the_attempt_survived_did_not_end_it():
    fine = ["step done"] * (EPISODE + 1)
    assert found(OOM, *fine, NAN).code == "NonFiniteStep"
    assert known_failure([scan("rank-0.log", OOM.encode()), scan("driver", b"fine")]).code == "TrainOutOfMemory"


def test_a_hint_ends_no_attempt():
    hint = next(each for each in catalogue().values() if each.level == "Hint" and each.example)
    assert found(*hint.example.split("\n")) is None


def test_a_driver_s_output_carries_it():
    failure = found(OOM)
    output = f"Traceback\nMemoryError: x\n2026-11-24 10:00:00,000 ERROR rljob_trainer.driver {failure.line}\nbye\n"
    assert logged(output) == failure
    assert without_line(output) == "Traceback\nMemoryError: x\nbye\n"


def test_the_last_of_two_counts_and_one_of_a_newer_catalogue_none():
    lines = found(OOM).line + "\n" + found(NAN).line
    assert logged(lines).code == "NonFiniteStep"
    assert logged("action=diagnose failure=NotInvented seen=x: y") is None
    assert logged("action=end") is None


@pytest.mark.parametrize("length", [LONGEST_EVIDENCE - 1, 5000])
def test_long_evidence_is_cut_and_kept_on_one_line(length: int):
    failure = found(OOM + " x" * (length // 2))
    assert len(failure.evidence) <= LONGEST_EVIDENCE
    assert logged(failure.line) == failure


@each_of(catalogue())
def test_every_failure_fits_the_status(code: str):
    assert len(code) <= 64
    assert len(catalogue()[code].title) <= 500
    assert len(catalogue()[code].remedy[0]) <= 500
