"""Which turn a history continues, and what crosses to the driver."""

import json
import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from rljob_trainer.gateway.record import Record, as_json, from_json
from rljob_trainer.gateway.requests import assistant_message
from rljob_trainer.gateway.tree import Tree, Turn, following, keys, leaves, path

TEXTS = some.text(some.characters(codec=None), max_size=5)
MESSAGES = some.builds(lambda role, text: {"role": role, "content": text}, some.sampled_from(["user", "tool"]), TEXTS)
TOOLS = ({"type": "function", "function": {"name": "search"}},)


def turn(number, parent, **more):
    values = {"given_T": (number,), "given": "", "tokens_T": (100 + number,), "logprobs_T": (-0.5,)}
    ends = {"said": "", "text": "", "version": 0, "engine": "engine-0", "finish_reason": "stop"}
    return Turn(number=number, parent=parent, **{**values, **ends, **more})


@given(some.lists(MESSAGES, min_size=1, max_size=4), TEXTS, some.lists(MESSAGES, min_size=1, max_size=3))
def test_what_follows_an_answer_continues_it(before, said, after):
    tree, answer = Tree(), assistant_message(said, [])
    tree.add(turn(0, None), following(keys(before, ())[-1], answer))
    assert tree.known(keys([*before, answer, *after], ())) == (0, len(before) + 1)
    assert tree.known(keys([*before, answer], ())) == (None, 0)
    assert tree.known(keys([*before, answer, *after], TOOLS)) == (None, 0)
    assert tree.known(keys([{"role": "user", "content": "other"}, *before, answer, *after], ())) == (None, 0)


def test_calls_are_compared_by_what_they_say_and_not_by_their_numbers():
    call = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"words": "a b"}'}}
    again = {"id": "x", "type": "function", "function": {"name": "search", "arguments": '{ "words":"a b" }'}}
    other = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"words": "a"}'}}
    one, same, different = (keys([assistant_message("", [each])], TOOLS) for each in (call, again, other))
    assert one == same != different


def test_of_equal_answers_the_newest_is_continued():
    tree, answer = Tree(), assistant_message("two", [])
    key = following(keys([{"role": "user", "content": "q"}], ())[-1], answer)
    tree.add(turn(0, None), key)
    tree.add(turn(1, None), key)
    history = [{"role": "user", "content": "q"}, answer, {"role": "user", "content": "and"}]
    assert tree.known(keys(history, ())) == (1, 2)


def test_tokens_of_a_turn_are_those_of_its_way_from_the_root():
    tree = Tree([turn(0, None), turn(1, 0), turn(2, 0), turn(3, 2)])
    assert tree.tokens(3) == (0, 100, 2, 102, 3, 103)
    assert tree.tokens(None) == ()
    assert leaves(tree.turns) == (1, 3)
    assert [each.number for each in path(tree.turns, 3)] == [0, 2, 3]


def test_a_record_crosses_as_json():
    experts = np.array([[3, 1]], np.int16).ravel()
    record = Record((turn(0, None, experts=experts), turn(1, 0, trained=False)), over="turns", refused=2)
    back = from_json(json.loads(json.dumps(as_json(record))))
    assert back == record
    assert back.turns[0].experts is not None
    np.testing.assert_array_equal(back.turns[0].experts, experts)


def test_a_log_probability_that_is_none_crosses_as_none():
    content = as_json(Record((turn(0, None),)))
    content["turns"][0]["logprobs_T"] = [None]
    (back,) = from_json(content).turns
    assert math.isnan(back.logprobs_T[0])
    assert replace(back, logprobs_T=()) == turn(0, None, logprobs_T=())
