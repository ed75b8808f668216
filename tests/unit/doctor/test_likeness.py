"""A line that no signature and no rule knows is judged by the words that it shares with the catalogue."""

import pytest

from rljob_doctor.catalogue import catalogue
from rljob_doctor.diagnosis import diagnose
from rljob_doctor.likeness import most_like, words
from rljob_doctor.scan import scan
from rljob_doctor.topics import code_of_line

INFEASIBLE = (
    "gcs_placement.cc: The required resource is bigger than the maximum resource in the whole cluster or no node"
    " satisfies the label constraints, schedule failed."
)


def codes(*lines: str) -> list[str]:
    return [each.failure.code for each in diagnose([scan("log", "\n".join(lines).encode())]).findings]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (INFEASIBLE, "GpusInsufficient"),
        ("mpirun noticed that process rank 3 on node gpu-2 exited on signal 9 (Killed).", None),
        ("it is Tuesday and the weather failed", None),
        ("the connection failed", None),
        ("failed to create task for container: context deadline exceeded", None),
        ("", None),
    ],
)
def test_a_line_is_like_the_failure_with_its_rare_words(line: str, code: str | None):
    assert most_like(line) == code


def test_words_have_no_capitals_endings_or_small_words():
    assert words("FailedMount of the Volumes, mounted by kubelet") == {"mount", "volum", "kubelet"}
    assert words("gas lens a 12 at: failed error") == {"gas", "lens"}


def test_no_line_is_like_a_hint():
    for failure in catalogue().values():
        code = most_like(failure.example or "")
        assert code is None or catalogue()[code].level.value != "Hint"


def test_most_examples_are_like_their_own_failure():
    found = {code: most_like(each.example) for code, each in catalogue().items() if each.example}
    known = {code: like for code, like in found.items() if like is not None}
    assert len(known) > 120
    assert sum(code == like for code, like in known.items()) / len(known) > 0.95


def test_the_last_lines_are_judged_by_likeness_where_nothing_else_is_known():
    assert code_of_line(INFEASIBLE) is None
    assert codes(INFEASIBLE) == ["GpusInsufficient"]
    assert codes(f"[rank3]: {INFEASIBLE}") == ["GpusInsufficient"]
    assert codes(INFEASIBLE, "E0304 10:00:00.1 1 a.go:12] failed to attach volume") == ["VolumeMountFailed"]
    assert codes(INFEASIBLE, "rollout 12: 256 samples") == []
    assert codes(f"INFO {INFEASIBLE}") == []


def test_an_exception_is_not_judged_by_likeness():
    odd = ("Traceback (most recent call last):", '  File "own.py", line 1, in f', "own.OddError: so odd")
    assert codes(INFEASIBLE, *odd) == ["PythonException"]


def test_a_prefix_of_a_collector_is_no_word_of_a_line():
    assert codes(f"({INFEASIBLE}) it failed") == []
    line = "tool python: call timed out after 5 s"
    assert codes(line) == codes(f"[rank3]: {line}") == codes(f"rl-train-worker-3: {line}") == []
