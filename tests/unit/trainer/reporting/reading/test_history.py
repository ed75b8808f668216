"""What a run directory shows about its run."""

from dataclasses import replace
from pathlib import Path

import pytest

from rljob_trainer.reporting.reading.history import History, NotARunError, read_history, result
from support.trainer.synthetic_run import SyntheticRun, finished_run


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return read_history(finished_run(tmp_path_factory.mktemp("run")))


def test_a_run_that_was_restarted_has_each_step_once(history: History) -> None:
    assert [step.step for step in history.steps] == list(range(1, 37))
    assert [evaluation.step for evaluation in history.evaluations] == [0, 9, 18, 27, 36]


def test_a_set_has_its_accuracies_by_step_from_when_it_was_there(history: History) -> None:
    first, *others = history.evaluations
    later = replace(history, evaluations=(first.model_copy(update={"sets": {}}), *others))
    assert history.evaluation_sets == later.evaluation_sets == ("longer",)
    assert list(history.accuracies("longer")) == [0, 9, 18, 27, 36]
    assert list(later.accuracies("longer")) == [9, 18, 27, 36]
    assert later.accuracies("longer")[9].n == 50


def test_starts_and_lost_steps_are_known(history: History) -> None:
    assert [(run.attempt, run.step, run.lost_steps) for run in history.runs] == [(1, 0, 0), (2, 20, 3)]


def test_a_failure_that_was_reported_twice_is_there_once_with_what_is_known_last(history: History) -> None:
    assert [(each.engine, each.step, each.return_seconds) for each in history.incidents] == [
        ("engine-1", 13, 21.4),
        ("engine-0", 30, None),
    ]


def test_the_phases_of_an_uninterrupted_run_add_up_to_its_wall_clock(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, steps=4)
    run.evaluate(0)
    for step in range(1, 5):
        run.take(step)
    run.report.end("finished")
    history = read_history(tmp_path)
    assert sum(history.parts.values()) == pytest.approx(history.seconds, rel=0.01)
    assert history.parts["other"] < 0.01 * history.seconds


def test_the_result_is_a_sentence_about_held_out_accuracy(history: History) -> None:
    assert result(history) == "held-out accuracy 0.11 → 0.59 (greedy 0.37 → 0.65)"


def test_without_a_second_evaluation_the_result_is_about_the_reward(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.evaluate(0)
    run.take(1)
    run.take(2)
    assert result(read_history(tmp_path)) == "mean reward 0.14 → 0.08"


def test_a_run_without_a_step_has_no_result_yet(tmp_path: Path) -> None:
    SyntheticRun(tmp_path)
    assert result(read_history(tmp_path)) == "no step finished yet"


def test_a_run_that_goes_on_after_an_end_has_no_outcome(tmp_path: Path) -> None:
    first = SyntheticRun(tmp_path)
    first.take(1)
    first.report.end("stopped")
    assert read_history(tmp_path).outcome == "stopped"
    SyntheticRun(tmp_path, attempt=2, first=1, start=100.0)
    assert read_history(tmp_path).outcome is None


@pytest.mark.parametrize("content", [None, ""])
def test_a_directory_without_a_run_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(content or "") if content is not None else None
    with pytest.raises(NotARunError, match=str(tmp_path)):
        read_history(tmp_path)
