"""Questions that stay in their file are those that would be held in memory, in the same order, with the same errors."""

import json
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.parquet import write_table

from rljob_api.sections import Data, Source
from rljob_trainer.data import dataset as dataset_module
from rljob_trainer.data import index, json_lines, sources
from rljob_trainer.data.dataset import Dataset, dataset
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.data.references import references
from rljob_trainer.data.render import Renderer
from rljob_trainer.data.rows import Row, is_plain, row
from rljob_trainer.data.scan import Task, scanned
from rljob_trainer.data.sources import questions
from rljob_trainer.data.stored_rows import StoredRows
from rljob_trainer.data.tokenizer import load_tokenizer

Write = Callable[[Sequence[dict[str, Any]]], Source]
GOOD = [{"question": f"{n} + {n}", "answer": str(2 * n), "level": n} for n in range(40)]


def in_this_process(task: Task) -> Any:
    return [scanned(task.kind(task.path), part, task) for part in task.parts]


@pytest.fixture
def stored(monkeypatch) -> None:
    """All files are large, and are scanned here, in small parts."""
    monkeypatch.setattr(sources, "HELD_BYTES", 0)
    monkeypatch.setattr(sources, "HELD_ROWS", 0)
    monkeypatch.setattr(json_lines, "PART_BYTES", 100)
    monkeypatch.setattr(index, "_worked", in_this_process)


@pytest.fixture(params=["jsonl", "parquet"])
def write(request, tmp_path) -> Write:
    def jsonl(rows: Sequence[dict[str, Any]]) -> Source:
        path = tmp_path / "q.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Source(jsonl=str(path))

    def parquet(rows: Sequence[dict[str, Any]]) -> Source:
        path = tmp_path / "q.parquet"
        write_table(pyarrow.Table.from_pylist(list(rows)), path, row_group_size=7)
        return Source(parquet=str(path))

    return jsonl if request.param == "jsonl" else parquet


def held_and_stored(data: Data, conversations: bool = False) -> tuple[Any, Any]:
    """Return what both ways make of the questions: rows, or the error."""

    def tried(held_bytes: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources, "HELD_BYTES", held_bytes)
            try:
                read = questions(data, conversations).train
            except DataError as error:
                return str(error)
        assert isinstance(read, StoredRows) == (held_bytes == 0)
        return list(read)

    return tried(2**40), tried(0)


def test_the_rows_are_the_same_and_have_the_same_places(stored, write):
    held, from_file = held_and_stored(Data(train=write(GOOD)))
    assert from_file == held and len(held) == 40


def test_questions_that_are_measured_on_are_removed(stored, write, tmp_path):
    (tmp_path / "h.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (GOOD[0], GOOD[13], GOOD[39])))
    data = Data(train=write(GOOD), held_out=Source(jsonl=str(tmp_path / "h.jsonl")))
    held, from_file = held_and_stored(data)
    assert from_file == held and len(held) == 37


def test_conversations_that_are_measured_on_are_removed_too(stored, write, tmp_path):
    def said(text: str) -> dict[str, Any]:
        return {"question": [{"role": "user", "content": "hi"}, {"role": "user", "content": text}], "answer": "a"}

    other = {"question": [{"role": "user", "content": "ho"}, {"role": "user", "content": "x"}], "answer": "a"}
    (tmp_path / "h.jsonl").write_text(json.dumps(said("x")) + "\n")
    data = Data(train=write([said("x"), said("y"), other]), held_out=Source(jsonl=str(tmp_path / "h.jsonl")))
    held, from_file = held_and_stored(data)
    assert from_file == held and len(held) == 2


def test_none_left_to_train_on_is_the_same_error(stored, write):
    source = write(GOOD)
    held, from_file = held_and_stored(Data(train=source, held_out=source))
    assert from_file == held and "40 were read" in held


@pytest.mark.parametrize("limit", [1, 7, 8, 39, 41])
def test_a_limit_counts_the_first_rows(stored, write, limit):
    source = write(GOOD).model_copy(update={"limit": limit})
    held, from_file = held_and_stored(Data(train=source))
    assert from_file == held and len(held) == min(limit, 40)


def test_a_bad_row_behind_the_limit_is_not_looked_at(stored, write):
    source = write([*GOOD, {"question": "", "answer": "", "level": 0}])
    assert len(questions(Data(train=source.model_copy(update={"limit": 40}))).train) == 40


@pytest.mark.parametrize(
    "bad",
    [
        {"question": " ", "answer": "1"},
        {"question": None, "answer": "1"},
        {"question": "x", "answer": None},
        {"question": [{"role": "system", "content": "x"}], "answer": "1"},
        {"other": "x"},
    ],
    ids=["empty", "no question", "no answer", "no user", "no key"],
)
def test_a_row_that_cannot_be_used_is_the_same_error_with_the_same_place(stored, tmp_path, bad):
    lines = [json.dumps(row) for row in GOOD]
    (tmp_path / "q.jsonl").write_text("\n".join([*lines[:20], "", json.dumps(bad), *lines[20:], json.dumps(bad)]))
    held, from_file = held_and_stored(Data(train=Source(jsonl=str(tmp_path / "q.jsonl"))))
    assert from_file == held and "q.jsonl:22: " in held


@pytest.mark.parametrize("bad", ["{", "[1]", '{"question": "x", "answer": "1", "more": 01}'])
def test_a_line_that_is_no_object_is_the_same_error(stored, tmp_path, bad):
    (tmp_path / "q.jsonl").write_text("\n".join([*map(json.dumps, GOOD), bad]))
    held, from_file = held_and_stored(Data(train=Source(jsonl=str(tmp_path / "q.jsonl"))))
    assert from_file == held and "q.jsonl:41: " in held


@pytest.mark.parametrize("other", ["NaN", '"\\ud800"'])
def test_what_only_the_standard_parser_takes_is_taken(stored, tmp_path, other):
    (tmp_path / "q.jsonl").write_text(f'{{"question": "x", "answer": "1", "other": {other}}}')
    held, from_file = held_and_stored(Data(train=Source(jsonl=str(tmp_path / "q.jsonl"))))
    assert repr(from_file) == repr(held) and len(held) == 1


def test_a_row_of_parquet_that_cannot_be_used_is_named_with_all_its_columns(stored, tmp_path):
    table = pyarrow.Table.from_pylist([*GOOD, {"question": "x", "answer": None, "level": 1}])
    write_table(table, tmp_path / "q.parquet", row_group_size=7)
    data = Data(train=Source(parquet=str(tmp_path / "q.parquet")))
    held, from_file = held_and_stored(data)
    assert from_file == held and "q.parquet row 41: " in held
    held, from_file = held_and_stored(data.model_copy(update={"label_key": "result"}))
    assert from_file == held and "`level`" in held


def test_a_response_to_learn_must_be_there(stored, write):
    source = write([*GOOD, {"question": "x", "answer": " ", "level": 0}])
    with pytest.raises(DataError, match=r"(:| row )41: there is no response to learn"):
        questions(Data(train=source), conversations=True)
    assert len(questions(Data(train=source)).train) == 41


def test_columns_of_nested_keys_and_metadata_are_read(stored, write):
    rows = [{"a": {"b": f"{n}"}, "facts": {"level": n}, "answer": n} for n in range(9)]
    data = Data(train=write(rows), input_key="a.b", metadata_key="facts")
    held, from_file = held_and_stored(data)
    assert from_file == held and held[3].metadata == {"level": 3}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    lines=st.lists(st.sampled_from([*map(json.dumps, GOOD[:5]), "", "  "]), min_size=1, max_size=12),
    part=st.integers(1, 200),
    end=st.sampled_from(["", "\n", "\n\n"]),
)
def test_parts_of_any_size_find_every_row_once(stored, tmp_path, lines, part, end):
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(lines) + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "PART_BYTES", part)
        held, from_file = held_and_stored(Data(train=Source(jsonl=str(path))))
    assert from_file == held or (held.endswith("no rows") if isinstance(held, str) else False)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.text(max_size=2))
)


@settings(deadline=None, max_examples=50)
@given(st.fixed_dictionaries({}, optional={"question": VALUES, "answer": VALUES}))
def test_of_a_plain_row_there_is_nothing_to_say(raw):
    data = Data(train=Source(jsonl="unread.jsonl"))
    if is_plain(raw, data):
        assert row(raw, "here", data).label == str(raw["answer"]) and type(raw["answer"]) in (str, int, float)
    else:
        with pytest.raises(DataError):
            row(raw, "here", data)


def test_real_workers_find_what_this_process_finds(stored, write, monkeypatch):
    source = write(GOOD)
    here = questions(Data(train=source)).train
    monkeypatch.undo()
    monkeypatch.setattr(sources, "HELD_BYTES", 0)
    monkeypatch.setattr(json_lines, "PART_BYTES", 100)
    apart = questions(Data(train=source)).train
    assert isinstance(here, StoredRows) and isinstance(apart, StoredRows)
    assert list(apart) == list(here) and apart.contents.digest == here.contents.digest


def test_a_worker_that_fails_is_an_error_with_its_last_words(stored, write, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(sources, "HELD_BYTES", 0)
    monkeypatch.setattr(index, "COMMAND", ("sh", "-c", "echo no memory >&2; exit 3"))
    with pytest.raises(DataError, match=r"exit code 3: no memory"):
        questions(Data(train=write(GOOD)))


def test_a_file_that_changes_after_it_was_indexed_is_an_error(stored, write):
    source = write(GOOD)
    read = questions(Data(train=source)).train
    write([*GOOD, GOOD[0]])
    with pytest.raises(DataError, match=r"it has changed while the run reads it"):
        read[0]


def test_a_file_that_is_gone_is_an_error(stored, write):
    source = write(GOOD)
    read = questions(Data(train=source)).train
    Path(source.jsonl or source.parquet or "").unlink()
    with pytest.raises(DataError, match=r"cannot be read"):
        read[0]


def test_slices_and_negative_numbers_are_those_of_a_sequence(stored, write):
    read = questions(Data(train=write(GOOD))).train
    assert [each.label for each in read[3:5]] == ["6", "8"]
    assert read[-1].label == "78"
    with pytest.raises(IndexError):
        read[40]


def test_small_files_small_limits_and_generated_questions_are_held(write, monkeypatch):
    source = write(GOOD)
    assert isinstance(questions(Data(train=source)).train, tuple)
    monkeypatch.setattr(sources, "HELD_BYTES", 0)
    few = source.model_copy(update={"limit": sources.HELD_ROWS})
    assert isinstance(questions(Data(train=few)).train, tuple)
    more = source.model_copy(update={"limit": sources.HELD_ROWS + 1})
    assert isinstance(questions(Data(train=more)).train, StoredRows)


def test_parquet_with_large_row_groups_is_held(stored, tmp_path, monkeypatch):
    write_table(pyarrow.Table.from_pylist(GOOD), tmp_path / "q.parquet")
    monkeypatch.setattr(sources, "GROUP_BYTES", 100)
    assert isinstance(questions(Data(train=Source(parquet=str(tmp_path / "q.parquet")))).train, tuple)


def test_of_a_file_no_row_is_held(stored, tmp_path, monkeypatch):
    rows = 10_000
    line = json.dumps({"question": "x" * 2000, "answer": "1"}) + "\n"
    (tmp_path / "q.jsonl").write_text(line * rows)
    monkeypatch.setattr(json_lines, "PART_BYTES", 2**20)
    source = Source(jsonl=str(tmp_path / "q.jsonl"))
    tracemalloc.start()
    try:
        read = questions(Data(train=source)).train
        read[rows // 2 : rows // 2 + 10]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(read) == rows
    assert most < rows * len(line) / 5, f"{most / rows:.0f} bytes for each row of {len(line)}"


def made(source: Source, model: Path, room: int = 100, **more: Any) -> Dataset:
    return dataset(Data(train=source, chat_template=False, **more), load_tokenizer(model), room)


def stream(read: Dataset, seed: int = 5) -> PromptStream:
    return read.stream(seed=seed, shuffle=True)


def test_the_stream_issues_the_prompts_that_it_would_issue_from_memory(stored, write, tiny_llama_dir, monkeypatch):
    source = write(GOOD)
    from_file = stream(made(source, tiny_llama_dir))
    monkeypatch.setattr(sources, "HELD_BYTES", 2**40)
    held = stream(made(source, tiny_llama_dir))
    for number in (3, 60, 1):
        assert from_file.draw(number) == held.draw(number)
    from_file.seek((2, 17))
    assert from_file.draw(5) == tuple(map(held.prompt, islice(held.uids(), 97, 102)))


def test_the_fingerprint_is_that_of_the_same_content_and_rendering(stored, write, tiny_llama_dir):
    source = write(GOOD)
    first = stream(made(source, tiny_llama_dir)).fingerprint
    assert stream(made(source, tiny_llama_dir)).fingerprint == first
    assert stream(made(source, tiny_llama_dir), seed=6).fingerprint != first
    assert stream(made(source, tiny_llama_dir, prompt_template="{question} =")).fingerprint != first
    assert stream(made(source, tiny_llama_dir, label_key="question")).fingerprint != first
    less = source.model_copy(update={"limit": 39})
    assert stream(made(less, tiny_llama_dir)).fingerprint != first
    write([*GOOD[:-1], GOOD[-1] | {"answer": "other"}])
    assert stream(made(source, tiny_llama_dir)).fingerprint != first


def test_the_fingerprint_needs_no_row_to_be_read(stored, write, tiny_llama_dir, monkeypatch):
    read = made(write(GOOD), tiny_llama_dir)
    monkeypatch.setattr(StoredRows, "read", lambda *_: pytest.fail("a row was read"))
    assert stream(read).fingerprint


def test_rows_beyond_the_first_count_in_the_fingerprint(stored, write, tiny_llama_dir, monkeypatch):
    monkeypatch.setattr(dataset_module, "FIRST", 2)
    first = stream(made(write(GOOD), tiny_llama_dir)).fingerprint
    changed = write([*GOOD[:-1], GOOD[-1] | {"answer": "other"}])
    assert stream(made(changed, tiny_llama_dir)).fingerprint != first


def test_a_prompt_that_is_too_long_is_an_error_before_the_run_starts(stored, write, tiny_llama_dir, monkeypatch):
    monkeypatch.setattr(dataset_module, "FIRST", 1)
    monkeypatch.setattr("rljob_trainer.data.scan.MEASURED", 2)
    source = write([*GOOD, {"question": "1 + " * 50, "answer": "1", "level": 0}])
    with pytest.raises(DataError, match=r"1 of \d+ prompts are longer than 20 tokens.*(:| row )41 \(\d+ tokens\)"):
        made(source, tiny_llama_dir, room=20)


def test_a_long_prompt_that_was_not_rendered_at_the_start_is_an_error_at_its_turn(
    stored, write, tiny_llama_dir, monkeypatch
):
    monkeypatch.setattr(dataset_module, "FIRST", 1)
    monkeypatch.setattr("rljob_trainer.data.scan.MEASURED", 1)
    monkeypatch.setattr(index, "MEASURED", 1)
    longer, dearer = "a" * 81, "é" * 70
    few, most = (len(load_tokenizer(tiny_llama_dir).encode(text)) for text in (longer, dearer))
    assert few < most, "the test needs a text with more characters and fewer tokens"
    rows = [*GOOD[:5], *({"question": text, "answer": "1", "level": 0} for text in (dearer, longer))]
    issuing = stream(made(write(rows), tiny_llama_dir, room=most - 1))
    with pytest.raises(DataError, match=rf"(:| row )6 \({most} tokens\)"):
        issuing.draw(7)


def test_responses_are_those_of_rows_in_memory(stored, write, tiny_llama_dir, monkeypatch):
    data = Data(train=write(GOOD))
    renderer = Renderer(data, load_tokenizer(tiny_llama_dir))
    from_file = references(questions(data, conversations=True).train, renderer, 100)
    monkeypatch.setattr(sources, "HELD_BYTES", 2**40)
    held = references(questions(data, conversations=True).train, renderer, 100)
    from_file.expect([3, 39])
    assert [from_file[number] for number in (3, 39, 0)] == [held[number] for number in (3, 39, 0)]
    assert len(from_file) == len(held) == 40


def test_a_response_that_is_too_long_is_an_error_before_the_run_starts(stored, write, tiny_llama_dir, monkeypatch):
    monkeypatch.setattr("rljob_trainer.data.scan.MEASURED", 2)
    monkeypatch.setattr(index, "MEASURED", 2)
    data = Data(train=write([*GOOD, {"question": "x", "answer": "1 " * 60, "level": 0}]))
    read: Sequence[Row] = questions(data, conversations=True).train
    with pytest.raises(DataError, match=r"1 of 2 responses are longer than rollout.sampling.maxNewTokens 20"):
        references(read, Renderer(data, load_tokenizer(tiny_llama_dir)), 20)
