"""The last line of `rljob run`."""

import json
from pathlib import Path
from typing import Any

from rljob_cli.summary import summary


def events(directory: Path, *records: dict[str, Any]) -> Path:
    path = directory / "events.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def evaluation(step: int, sampled: float, greedy: float | None) -> dict[str, Any]:
    return {"kind": "evaluation", "step": step, "sampled": sampled, "greedy": greedy}


def test_the_first_and_the_last_accuracy_are_told(tmp_path):
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
    assert summary(path, 239.6, report) == (
        f"held-out accuracy 0.11 -> 0.61 (greedy 0.30 -> 0.72), 2 steps, 240 s; report: {report}"
    )


def test_greedy_accuracy_is_left_out_where_it_was_not_measured(tmp_path):
    path = events(tmp_path, evaluation(0, 0.1, None), evaluation(5, 0.5, None))
    assert summary(path, 1.0, tmp_path / "none") == "held-out accuracy 0.10 -> 0.50, 0 steps, 1 s"


def test_a_single_evaluation_is_no_change(tmp_path):
    path = events(tmp_path, evaluation(0, 0.1, 0.3))
    assert summary(path, 1.0, tmp_path / "none") == "held-out accuracy 0.10 (greedy 0.30), 0 steps, 1 s"


def test_a_run_that_recorded_nothing_has_a_last_line_too(tmp_path):
    assert summary(tmp_path / "none", 3.0, tmp_path / "none") == "0 steps, 3 s"


def test_half_a_line_counts_as_not_written(tmp_path):
    path = events(tmp_path, {"kind": "step", "step": 4})
    path.write_text(path.read_text() + '{"kind": "st')
    assert summary(path, 3.0, tmp_path / "none") == "4 steps, 3 s"
