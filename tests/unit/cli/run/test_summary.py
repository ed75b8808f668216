"""The last line of `rljob run`."""

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_api.exits import Exit
from rljob_cli.run.summary import MOST_WARNINGS, recorded, summary, warnings


def events(directory: Path, *records: dict[str, Any]) -> Path:
    path = directory / "events.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def evaluation(step: int, sampled: float, greedy: float | None) -> dict[str, Any]:
    return {"kind": "evaluation", "step": step, "sampled": sampled, "greedy": greedy}


def test_the_first_and_the_last_accuracy_are_reported(tmp_path):
    report = tmp_path / "report.html"
    report.touch()
    path = events(
        tmp_path,
        evaluation(0, 0.11, 0.3),
        {"kind": "step", "step": 1},
        evaluation(1, 0.2, 0.4),
        {"kind": "step", "step": 2},
        evaluation(2, 0.61, 0.72),
    )
    assert summary(recorded(path), 239.6, report) == (
        f"held-out accuracy 0.11 -> 0.61 (greedy 0.30 -> 0.72), 2 steps, 240 s; report: {report}"
    )


def test_greedy_accuracy_is_left_out_where_it_was_not_measured(tmp_path):
    path = events(tmp_path, evaluation(0, 0.1, None), evaluation(5, 0.5, None))
    assert summary(recorded(path), 1.0, tmp_path / "none") == "held-out accuracy 0.10 -> 0.50, 0 steps, 1 s"


def test_a_single_evaluation_is_no_change(tmp_path):
    path = events(tmp_path, evaluation(0, 0.1, 0.3))
    assert summary(recorded(path), 1.0, tmp_path / "none") == "held-out accuracy 0.10 (greedy 0.30), 0 steps, 1 s"


def test_a_run_that_recorded_nothing_has_a_last_line_too(tmp_path):
    assert summary(recorded(tmp_path / "none"), 3.0, tmp_path / "none") == "0 steps, 3 s"


def test_half_a_line_counts_as_not_written(tmp_path):
    path = events(tmp_path, {"kind": "step", "step": 4})
    path.write_text(path.read_text() + '{"kind": "st')
    assert summary(recorded(path), 3.0, tmp_path / "none") == "4 steps, 3 s"


@pytest.mark.parametrize(
    ("code", "begins"),
    [
        (Exit.OK, "4"),
        (Exit.PREEMPTED, "stopped: 4"),
        (Exit.INTERRUPTED, "interrupted: 4"),
        (Exit.DIVERGED, "failed: 4"),
    ],
)
def test_a_run_that_is_not_done_says_so_first(tmp_path, code, begins):
    path = events(tmp_path, {"kind": "step", "step": 4})
    assert summary(recorded(path), 3.0, tmp_path / "none", code) == f"{begins} steps, 3 s"


def finding(step: int) -> dict[str, Any]:
    return {"kind": "finding", "step": step, "name": "NoSignal", "evidence": "0.9 of all", "advice": "other questions"}


def test_what_was_found_is_reported_again_at_the_end(tmp_path):
    check = {"name": "perplexity", "limit": 3.0, "means": "The checkpoint was not loaded."}
    checks = [{**check, "value": 2.0}, {**check, "value": 48.25}, {**check, "value": None}]
    path = events(tmp_path, {"kind": "first_step", "checks": checks}, finding(7))
    assert warnings(recorded(path)) == [
        "first step: perplexity: 48.2, most often at most 3; perplexity: not finite, most often at most 3;"
        " the report lists possible causes",
        "step 7: NoSignal: 0.9 of all; other questions",
    ]


def test_many_findings_are_cut_and_none_are_none(tmp_path):
    assert warnings(recorded(tmp_path / "none")) == []
    *shown, last = warnings(recorded(events(tmp_path, *map(finding, range(MOST_WARNINGS + 3)))))
    assert (len(shown), last) == (MOST_WARNINGS, "and 3 more findings, see the report")
