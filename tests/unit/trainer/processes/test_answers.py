"""Answers of processes in which code of others runs: all that is not ours is refused."""

import json

import pytest

from rljob_trainer.processes import answers
from rljob_trainer.processes.answers import HEADER, MOST_BYTES, AnswerError, introduction, result, split
from rljob_trainer.processes.function_workers import SCORES, TEXT


def framed(message: bytes) -> bytes:
    return HEADER.pack(len(message)) + message


@pytest.mark.parametrize("cut", range(len(framed(b"{}"))))
def test_a_message_is_taken_when_it_is_whole(cut):
    assert split(framed(b"{}")[:cut]) == (None, framed(b"{}")[:cut])


def test_what_follows_a_message_waits():
    assert split(framed(b"{}") + framed(b"[]")) == (b"{}", framed(b"[]"))


@pytest.mark.parametrize("length", [-1, 0, MOST_BYTES + 1, 2**31 - 1])
def test_a_message_of_no_or_of_endless_length_is_refused_before_it_comes(length):
    with pytest.raises(AnswerError, match=f"of {length} bytes"):
        split(HEADER.pack(length))


@pytest.mark.parametrize(
    "facts",
    [
        {"number": "a", "scores": [1, 0.5]},
        {"number": "a", "late": True},
        {"number": "a", "returned": "nan"},
        {"number": "a", "length": 3},
        {"number": "a", "raised": "ValueError: x", "memory": False},
    ],
)
def test_answers_of_our_own_program_are_read(facts):
    assert result(json.dumps(facts).encode(), SCORES) == facts


@pytest.mark.parametrize(
    "message",
    [
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b"\xff\xfe",
        b"",
        b"1",
        b'"text"',
        b"[]",
        b"{}",
        b'{"number": 1, "scores": [1.0]}',
        b'{"number": {}, "scores": [1.0]}',
        b'{"number": [], "scores": [1.0]}',
        b'{"number": null, "scores": [1.0]}',
        b'{"number": "a"}',
        b'{"number": "a", "scores": 1.0}',
        b'{"number": "a", "scores": "12"}',
        b'{"number": "a", "scores": [true]}',
        b'{"number": "a", "scores": [null]}',
        b'{"number": "a", "scores": [[1.0]]}',
        b'{"number": "a", "scores": [NaN]}',
        b'{"number": "a", "scores": [-Infinity]}',
        b'{"number": "a", "scores": [1' + b"0" * 4000 + b"]}",
        b'{"number": "a", "scores": [1' + b"0" * 5000 + b"]}",
        b'{"number": "a", "scores": [1.0], "text": "x"}',
        b'{"number": "a", "text": "x"}',
        b'{"number": "a", "late": 1}',
        b'{"number": "a", "length": "3"}',
        b'{"number": "a", "length": true}',
        b'{"number": "a", "raised": {"x": 1}}',
        b'{"number": "a", "raised": "x", "memory": "no"}',
        b'{"number": "a", "scores": [1.0], "extra": 1}',
    ],
)
def test_what_our_program_does_not_write_is_refused(message):
    with pytest.raises(AnswerError):
        result(message, SCORES)


def test_an_answer_of_a_reward_is_none_of_a_tool():
    assert result(b'{"number": "a", "text": "x"}', TEXT) == {"number": "a", "text": "x"}
    with pytest.raises(AnswerError):
        result(b'{"number": "a", "scores": [1.0]}', TEXT)


@pytest.mark.parametrize(
    "message", [b"{}", b'{"ready": true}', b'{"ready": true, "is_async": 1}', b'{"refused": 1}', b"["]
)
def test_an_introduction_is_read_as_strictly(message):
    with pytest.raises(AnswerError):
        introduction(message)


def test_all_results_have_a_type():
    assert answers.TYPES.keys() >= answers.RESULTS | SCORES | TEXT
