"""Every rule of the tables decides what an error of the labelled ones is: a rule without a case may say anything."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rljob_doctor import topics
from rljob_doctor.scan import scan
from unit.doctor import test_own_messages, test_topics
from unit.doctor.test_logs_of_users import FAILING, logs
from unit.doctor.test_source_errors import ROWS, log_of


def cases_of(test: Callable[..., Any]) -> Any:
    """Return the cases of a test that has parameters."""
    return vars(test)["pytestmark"][0].args[1]


def run_other_cases() -> None:
    """Let the rules judge the errors that stand in other tests."""
    for error, frame, _ in cases_of(test_topics.test_an_exception_is_judged_by_class_words_and_frames):
        topics.code_of_exception(error, (frame,))
    for line, _ in cases_of(test_topics.test_a_line_is_judged_by_its_words):
        topics.code_of_line(line)
    for path, name in test_own_messages.own_errors():
        test_own_messages.first_code(path, f"{name}: own words")
    for _, path, error in cases_of(test_own_messages.test_an_error_of_the_trainer_is_named_by_its_class_and_words):
        test_own_messages.first_code(f"rljob_trainer/{path}", error)
    for _, path, error in cases_of(test_own_messages.test_an_exception_of_python_in_the_trainer_is_named_by_its_place):
        test_own_messages.first_code(f"rljob_trainer/{path}", f"ValueError: {error}")


@pytest.mark.long  # it judges all labelled logs once more, and the rules do not change
def test_every_rule_decides_a_labelled_error(monkeypatch: pytest.MonkeyPatch):
    decided: set[int] = set()
    of_exception, of_line = topics.rule_of_exception, topics.rule_of_line

    def noted_exception(error: str, frames: Sequence[str]) -> topics.ExceptionRule | None:
        rule = of_exception(error, frames)
        decided.add(id(rule))
        return rule

    def noted_line(line: str) -> topics.LineRule | None:
        rule = of_line(line)
        decided.add(id(rule))
        return rule

    monkeypatch.setattr(topics, "rule_of_exception", noted_exception)
    monkeypatch.setattr(topics, "rule_of_line", noted_line)
    labelled = (*FAILING, *logs("logs_of_threads.txt"), *logs("logs_of_programs.txt"))
    for text in (*(log_of(*row[2:]) for row in ROWS), *(text for _, text in labelled)):
        scan("log", text.encode())
    run_other_cases()
    without = [
        str(rule.model_dump(exclude_none=True))
        for rule in (*topics.exception_rules(), *topics.line_rules())
        if id(rule) not in decided
    ]
    assert not without, "rules that decide no labelled error (source_errors.yaml):\n" + "\n".join(without)
