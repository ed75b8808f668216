"""Questions from files and generators: what is read, what is refused, and in which words."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rljob_api.sections import Data, EvaluationSet, ReasoningGym, Source
from rljob_trainer.data import index, json_lines, sources
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.json_lines import JsonLines
from rljob_trainer.data.scan import scanned
from rljob_trainer.data.sources import questions

CHAIN_SUM = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def jsonl(path: Path, *rows: Any) -> Source:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Source(jsonl=str(path))


def chain_sum(size: int, seed: int = 0, limit: int | None = None) -> Source:
    return Source(reasoning_gym=ReasoningGym(task="chain_sum", size=size, seed=seed, config=CHAIN_SUM), limit=limit)


def test_json_lines_are_read_in_order(tmp_path):
    source = jsonl(tmp_path / "q.jsonl", {"question": "1 + 1", "answer": 2}, {"question": "2 + 2", "answer": "4"})
    rows = questions(Data(train=source)).train
    assert [(row.question, row.label) for row in rows] == [("1 + 1", "2"), ("2 + 2", "4")]
    assert rows[1].metadata == {"question": "2 + 2", "answer": "4"}
    assert rows[1].place == f"{tmp_path}/q.jsonl:2"


def test_empty_lines_are_no_rows_and_keep_the_line_numbers(tmp_path):
    (tmp_path / "q.jsonl").write_text('\n{"question": "a", "answer": "b"}\n\n')
    rows = questions(Data(train=Source(jsonl=str(tmp_path / "q.jsonl")))).train
    assert [row.place for row in rows] == [f"{tmp_path}/q.jsonl:2"]


def test_a_missing_key_is_reported_with_file_line_and_the_keys_found(tmp_path):
    source = jsonl(tmp_path / "q.jsonl", {"question": "a", "answer": "b"}, {"prompt": "a", "extra": {"level": 3}})
    with pytest.raises(
        DataError,
        match=r"q\.jsonl:2: no key `question` \(data\.inputKey\); the row has `prompt`, `extra`, `extra\.level`",
    ):
        questions(Data(train=source))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "  ", "answer": "b"}, "`question` is empty"),
        ({"question": [], "answer": "b"}, "`question` is empty"),
        ({"question": 7, "answer": "b"}, "of type int, not a string or a list of chat messages"),
        ({"question": [{"role": "user"}], "answer": "b"}, "message 0 of `question` wants a `role` and a `content`"),
        (
            {"question": [{"role": "assistant", "content": "x"}], "answer": "b"},
            "the last message .* must be the user's",
        ),
        ({"question": "a", "answer": None}, r"`answer` \(data\.labelKey\) is null"),
        ({"question": "a", "answer": ["b"]}, "is a list, and rewards compare with one answer"),
    ],
)
def test_an_unusable_row_is_refused_with_its_place(tmp_path, row, said):
    with pytest.raises(DataError, match=rf"q\.jsonl:1: .*{said}"):
        questions(Data(train=jsonl(tmp_path / "q.jsonl", row)))


USER, ANSWER = {"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}


def test_a_whole_conversation_is_asked_up_to_the_first_answer(tmp_path):
    train = jsonl(tmp_path / "q.jsonl", {"messages": [USER, ANSWER, USER, ANSWER]}, {"messages": [USER], "answer": 3})
    whole, asked = questions(Data(train=train, input_key="messages"), conversations=True).train
    assert (len(whole.messages), len(whole.answers), whole.question, whole.label) == (1, 3, "1 + 1", "2\n1 + 1\n2")
    assert (asked.answers, asked.label) == ((), "3")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": [ANSWER]}, "in `messages` the assistant speaks before the user has"),
        ({"messages": [{**USER, "role": "system"}, ANSWER]}, "the assistant speaks before the user has"),
        ({"messages": [USER, {**ANSWER, "content": " "}, USER, ANSWER]}, "message 1 of `messages` is empty"),
        ({"messages": [USER, ANSWER], "answer": "2"}, r"`messages` ends with an answer .*`answer` \(data.labelKey\)"),
        ({"messages": [USER]}, "no key `answer`"),
        ({"messages": [USER, {**USER, "role": "tool"}], "answer": 2}, "the tool's; it must be the user's"),
    ],
)
def test_an_unusable_conversation_is_refused_with_its_place(tmp_path, row, said):
    data = Data(train=jsonl(tmp_path / "q.jsonl", row), input_key="messages")
    with pytest.raises(DataError, match=rf"q\.jsonl:1: .*{said}"):
        questions(data, conversations=True)


def test_a_line_that_is_not_json_is_reported_with_its_number(tmp_path):
    (tmp_path / "q.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question": \n')
    with pytest.raises(DataError, match=r"q\.jsonl:2: not JSON"):
        questions(Data(train=Source(jsonl=str(tmp_path / "q.jsonl"))))


@pytest.fixture(params=[False, True], ids=["held", "in its file"])
def file_of(request, tmp_path, monkeypatch) -> Callable[[bytes], Data]:
    """Writes a file of rows, whose rows are all held, or looked at in parts by other processes."""
    if request.param:
        monkeypatch.setattr(sources, "HELD_BYTES", 0)
        monkeypatch.setattr(json_lines, "PART_BYTES", 1000)
        monkeypatch.setattr(index, "_worked", lambda task: [scanned(JsonLines(task.path), p, task) for p in task.parts])

    def write(content: bytes) -> Data:
        (tmp_path / "q.jsonl").write_bytes(content)
        return Data(train=Source(jsonl=str(tmp_path / "q.jsonl")))

    return write


GOOD = b'{"question": "a", "answer": "b"}\n'


ENDLESS = {
    "letters": b"x" * 9000,
    "spaces": b" " * 9000,
    "nothing": b"\0" * 9000 + b"\n" + GOOD,
    "rows": GOOD.strip() * 300,
}


@pytest.mark.parametrize("rest", ENDLESS.values(), ids=ENDLESS)
def test_a_row_without_end_is_refused_before_more_of_it_is_read(file_of, monkeypatch, rest):
    monkeypatch.setattr(json_lines, "MOST_ROW_BYTES", 3000)
    with pytest.raises(DataError, match=r"q\.jsonl:3: has more than 3000 bytes; write one row on each line$"):
        questions(file_of(GOOD + GOOD + rest))


def test_a_row_of_the_most_bytes_is_read(file_of, monkeypatch):
    row = json.dumps({"question": "a" * 5000, "answer": "b"}).encode() + b"\n"
    monkeypatch.setattr(json_lines, "MOST_ROW_BYTES", len(row))
    assert len(questions(file_of(row + GOOD + row)).train) == 3


def test_a_file_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(json_lines, "MOST_ROW_BYTES", 10**6)
    with pytest.raises(DataError, match=r"^/dev/zero:1: has more than 1000000 bytes"):
        questions(Data(train=Source(jsonl="/dev/zero")))


def test_a_row_of_more_values_than_memory_is_for_is_refused_before_it_is_parsed(file_of, monkeypatch):
    monkeypatch.setattr(json_lines, "MOST_VALUES", 1000)
    with pytest.raises(DataError, match=r"q\.jsonl:2: has 2\d{3} commas and brackets in 4\d{3} bytes; at most 1000$"):
        questions(file_of(GOOD + b'{"question": "a", "answer": "b", "x": [' + b"[], " * 999 + b"[]]}\n"))


@pytest.mark.parametrize("levels", [100, 900, 5000, 10**5])
@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"a":', b"}")], ids=["lists", "objects"])
def test_a_row_that_is_nested_too_deep_is_refused_by_its_line(file_of, levels, pair):
    opened, closed = pair
    row = b'{"question": "a", "answer": "b", "x": %s1%s}\n' % (opened * levels, closed * levels)
    with pytest.raises(DataError, match=r"q\.jsonl:2: is nested over more than 100 levels$"):
        questions(file_of(GOOD + row + GOOD))


def test_many_brackets_are_no_nesting(file_of):
    row = {"question": "[" * 5000, "answer": "b", "x": [{"y": [{}]}] * 500, "z": json.loads("[" * 99 + "]" * 99)}
    assert len(questions(file_of(json.dumps(row).encode())).train) == 1


def test_arguments_of_a_call_that_are_nested_too_deep_are_refused(tmp_path):
    arguments = '{"a": ' + "[" * 500 + "]" * 500 + "}"
    calls = [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": arguments}]}]
    source = jsonl(tmp_path / "q.jsonl", {"question": [*calls, {"role": "user", "content": "a"}], "answer": "b"})
    with pytest.raises(DataError, match=r"q\.jsonl:1: .* wants a function with a `name` and `arguments`"):
        questions(Data(train=source))


def test_of_many_keys_a_message_names_some(tmp_path):
    source = jsonl(tmp_path / "q.jsonl", {f"{'k' * 200}{number}": {"inner": 1} for number in range(10_000)})
    with pytest.raises(DataError, match=r"the row has `kkk.* and more, of 10000 at the top$") as raised:
        questions(Data(train=source))
    assert len(str(raised.value)) < 6000


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.jsonl: cannot be read: No such file"):
        questions(Data(train=Source(jsonl=str(tmp_path / "nowhere.jsonl"))))


def test_a_file_without_rows_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"q\.jsonl: no rows"):
        questions(Data(train=jsonl(tmp_path / "q.jsonl")))


def test_rows_after_the_limit_are_not_even_looked_at(tmp_path):
    source = jsonl(tmp_path / "q.jsonl", {"question": "a", "answer": "b"}, {"broken": True})
    assert len(questions(Data(train=source.model_copy(update={"limit": 1}))).train) == 1


def test_parquet_rows_equal_json_rows(tmp_path):
    rows = [{"question": [{"role": "user", "content": f"{n} + 1"}], "answer": str(n + 1)} for n in range(3000)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "q.parquet")
    from_parquet = questions(Data(train=Source(parquet=str(tmp_path / "q.parquet")))).train
    from_json = questions(Data(train=jsonl(tmp_path / "q.jsonl", *rows))).train
    assert [(row.messages, row.label) for row in from_parquet] == [(row.messages, row.label) for row in from_json]


def test_a_missing_parquet_column_is_reported_with_the_row(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["a"], "answer": ["b"]}), tmp_path / "q.parquet")
    with pytest.raises(DataError, match=r"q\.parquet row 1: no key `question` .* has `prompt`, `answer`"):
        questions(Data(train=Source(parquet=str(tmp_path / "q.parquet"))))


def test_a_file_that_is_not_parquet_is_reported(tmp_path):
    (tmp_path / "q.parquet").write_text("question,answer")
    with pytest.raises(DataError, match=r"q\.parquet: cannot be read as Parquet"):
        questions(Data(train=Source(parquet=str(tmp_path / "q.parquet"))))


def test_a_dotted_key_leads_into_nested_objects(tmp_path):
    source = jsonl(tmp_path / "q.jsonl", {"metadata": {"expression": "1 + 1"}, "answer": "2"})
    assert questions(Data(train=source, input_key="metadata.expression")).train[0].question == "1 + 1"


def test_a_column_whose_name_has_a_dot_comes_before_a_path(tmp_path):
    source = jsonl(tmp_path / "q.jsonl", {"a.b": "column", "a": {"b": "path"}, "answer": "2"})
    assert questions(Data(train=source, input_key="a.b")).train[0].question == "column"


def test_the_metadata_key_chooses_what_rewards_receive(tmp_path):
    source = jsonl(tmp_path / "q.jsonl", {"question": "a", "answer": "b", "facts": {"level": 3}})
    assert questions(Data(train=source, metadata_key="facts")).train[0].metadata == {"level": 3}


def test_generated_questions_do_not_repeat():
    rows = questions(Data(train=chain_sum(2000), input_key="metadata.expression")).train
    assert len({row.question for row in rows}) == len(rows) == 200


def test_generated_questions_are_the_same_every_time():
    data = Data(train=chain_sum(50))
    assert questions(data) == questions(data)


def test_the_limit_counts_different_generated_questions():
    assert len(questions(Data(train=chain_sum(2000, limit=150))).train) == 150


def test_no_held_out_question_is_trained_on():
    read = questions(Data(train=chain_sum(2000), held_out=chain_sum(50), input_key="metadata.expression"))
    assert read.held_out
    assert {row.question for row in read.train}.isdisjoint(row.question for row in read.held_out)
    assert len(read.train) + len(read.held_out) == 200


def test_no_question_of_any_evaluation_set_is_trained_on(tmp_path):
    def rows(*numbers: int) -> list[dict[str, Any]]:
        return [{"question": f"{number} + 1", "answer": str(number + 1)} for number in numbers]

    sets = {"low": rows(0, 1), "both": rows(1, 5, 9)}
    data = Data(
        train=jsonl(tmp_path / "train.jsonl", *rows(*range(6))),
        held_out=jsonl(tmp_path / "held_out.jsonl", *rows(3)),
        evaluation_sets=tuple(
            EvaluationSet(name=name, jsonl=jsonl(tmp_path / f"{name}.jsonl", *each).jsonl)
            for name, each in sets.items()
        ),
    )
    read = questions(data)
    assert [row.label for row in read.train] == ["3", "5"]
    assert {name: [row.label for row in found] for name, found in read.evaluation_sets.items()} == {
        "low": ["1", "2"],
        "both": ["2", "6", "10"],
    }


def test_an_evaluation_set_has_its_own_limit(tmp_path):
    rows = [{"question": str(number), "answer": ""} for number in range(4)]
    source = jsonl(tmp_path / "q.jsonl", *rows)
    read = questions(Data(train=source, evaluation_sets=(EvaluationSet(name="few", jsonl=source.jsonl, limit=1),)))
    assert (len(read.evaluation_sets["few"]), len(read.train)) == (1, 3)


def test_equal_last_turns_of_different_conversations_are_different_questions(tmp_path):
    def talk(first: str) -> dict[str, Any]:
        turns = [("user", first), ("assistant", "Hm."), ("user", "Why?")]
        return {"question": [{"role": role, "content": text} for role, text in turns], "answer": ""}

    data = Data(train=jsonl(tmp_path / "t.jsonl", talk("Rain")), held_out=jsonl(tmp_path / "h.jsonl", talk("Snow")))
    assert len(questions(data).train) == 1


def test_nothing_left_to_train_on_is_refused(tmp_path):
    source = jsonl(tmp_path / "q.jsonl", {"question": "a", "answer": "b"})
    with pytest.raises(DataError, match=r"no questions are left; 1 were read"):
        questions(Data(train=source, held_out=source))


def test_nothing_left_to_train_on_is_reported_with_the_evaluation_sets(tmp_path):
    rows = [{"question": question, "answer": ""} for question in "ab"]
    train = jsonl(tmp_path / "q.jsonl", *rows)
    one = EvaluationSet(name="one", jsonl=jsonl(tmp_path / "one.jsonl", rows[0]).jsonl)
    other = jsonl(tmp_path / "other.jsonl", rows[1])
    with pytest.raises(DataError, match=r"2 were read and all are in data\.heldOut or data\.evaluationSets"):
        questions(Data(train=train, held_out=other, evaluation_sets=(one,)))


def test_an_unknown_task_is_reported_with_the_known_ones():
    with pytest.raises(DataError, match=r"no task `chain_sums`; it has .*chain_sum, "):
        questions(Data(train=Source(reasoning_gym=ReasoningGym(task="chain_sums", size=1))))


def test_a_setting_that_the_task_refuses_is_reported():
    gym = ReasoningGym(task="chain_sum", size=1, config={"min_terms": 0})
    with pytest.raises(DataError, match=r"refuses config .*`chain_sum`: min_terms must be positive"):
        questions(Data(train=Source(reasoning_gym=gym)))
