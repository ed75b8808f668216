"""What stands where an answer is wanted and is none: refused with a reason, and with a way out."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rljob_api.sections import Data, Source
from rljob_trainer.data import index, sources
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.json_lines import JsonLines
from rljob_trainer.data.scan import scanned
from rljob_trainer.data.sources import questions

VERL = {"ground_truth": "72", "style": "rule"}
SEARCH = {"ground_truth": {"target": ["Paris", "Paname"]}, "style": "rule"}
CHOOSE = "Choose one when the data is prepared; or name another column in data.labelKey, and let your own function"

REFUSED: dict[str, tuple[Any, str, str]] = {
    "an object": (VERL, "answer", "names an object with keys ground_truth, style, not a string or a number; did you "
                  "mean answer.ground_truth?"),
    "an object in an object": ({"reward_model": VERL}, "answer", "with key reward_model, not a string or a number; "
                               "did you mean answer.reward_model.ground_truth?"),
    "an object with one text": ({"colour": "red", "of": None}, "answer", "did you mean answer.colour?"),
    "an object with many texts": ({"a": "1", "b": "2"}, "answer", "name one of its texts, as in answer.KEY"),
    "an object with several answers": (SEARCH, "answer", "its answer.ground_truth.target is a list, and rewards"),
    "an empty object": ({}, "answer", "is an empty object"),
    "several answers": (SEARCH, "answer.ground_truth.target", f"is a list, and rewards compare with one answer, a "
                        f"string or a number. {CHOOSE}"),
    "one answer in a list": (["4"], "answer", CHOOSE),
    "an empty list": ([], "answer", "is an empty list, not a string or a number; no answer stands there"),
    "NaN": (float("nan"), "answer", "is nan, not a string or a finite number; no answer stands there"),
    "infinity": (float("inf"), "answer", "is inf, not a string or a finite number"),
    "null": (None, "answer", "is null, not a string or a number; no answer stands there: remove such rows"),
    "a boolean": (True, "answer", "is a boolean, not a string or a number: write it as the text"),
}  # fmt: skip
"""what stands under `answer`, `labelKey`, and what is said"""


@pytest.fixture(params=[False, True], ids=["held", "in its file"])
def kept(request, monkeypatch) -> None:
    """Let the rows of a file be held, or stay in it."""
    if request.param:
        monkeypatch.setattr(sources, "HELD_BYTES", 0)
        monkeypatch.setattr(index, "_worked", lambda task: [scanned(JsonLines(task.path), p, task) for p in task.parts])


def written(path: Path, answer: Any) -> Source:
    rows = ({"question": "a", "answer": "b"}, {"question": "c", "answer": answer})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Source(jsonl=str(path))


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("kept")
def test_what_is_no_answer_is_refused_with_a_way_out(tmp_path: Path, name: str) -> None:
    answer, key, said = REFUSED[name]
    rows = ({"question": "a", "answer": answer},) * 2
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError) as raised:
        questions(Data(train=Source(jsonl=str(tmp_path / "q.jsonl")), label_key=key))
    assert str(raised.value).startswith(f"{tmp_path}/q.jsonl:1: `{key}` (data.labelKey) ")
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pyarrow.array([4.0, float("nan")]), "row 2: .* is nan, not a string or a finite number"),
        (pyarrow.array([float("-inf"), 4.0]), "row 1: .* is -inf, not a string or a finite number"),
        (pyarrow.array([b"4", b"5"]), "row 1: .* is of type bytes, not a string or a number: write it as text"),
        (pyarrow.array([["4"], ["5"]]), "row 1: .* is a list"),
        (pyarrow.array([VERL, VERL]), r"row 1: .* did you mean answer\.ground_truth\?"),
    ],
)
def test_a_column_of_parquet_without_answers_is_refused(tmp_path: Path, column: Any, said: str) -> None:
    table = pyarrow.table({"question": ["a", "b"], "answer": column})
    pyarrow.parquet.write_table(table, tmp_path / "q.parquet")
    with pytest.raises(DataError, match=said):
        questions(Data(train=Source(parquet=str(tmp_path / "q.parquet"))))


def test_a_list_where_a_response_is_to_be_learned_belongs_to_the_conversation(tmp_path: Path) -> None:
    source = written(tmp_path / "q.jsonl", [{"role": "assistant", "content": "d"}])
    with pytest.raises(DataError, match=r"q\.jsonl:2: .* belongs behind those of `question` \(data\.inputKey\)"):
        questions(Data(train=source), conversations=True)


@pytest.mark.parametrize(
    ("answer", "label"), [(4, "4"), (-0.5, "-0.5"), ("nan", "nan"), ("", ""), (10**30, "1" + "0" * 30)]
)
@pytest.mark.usefixtures("kept")
def test_texts_and_finite_numbers_are_answers(tmp_path: Path, answer: Any, label: str) -> None:
    assert questions(Data(train=written(tmp_path / "q.jsonl", answer))).train[1].label == label
