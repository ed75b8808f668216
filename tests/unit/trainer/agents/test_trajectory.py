"""A session as a sample: which tokens are trained on, in which sequences, and what an end of an agent means."""

from dataclasses import replace

import numpy as np
import pytest

from rljob_api.sections import Branches
from rljob_trainer.agents.outcome import Failed, Returned
from rljob_trainer.agents.trajectory import Counting, trajectory
from rljob_trainer.conversations.errors import GenerateError, TooSlowError
from rljob_trainer.gateway.client import GatewayError
from rljob_trainer.gateway.record import Record
from rljob_trainer.gateway.tree import Turn
from rljob_trainer.generator import GenerationFailedError, RolloutTimeoutError
from rljob_trainer.samples import Prompt, sequences

PROMPT = Prompt("0:0", "q", "row", (1, 2), "l", {})
COUNTING = Counting(Branches.ALL, drop_outgrown=False, judged=True)


def turn(number, parent, given, said, **more):
    """Return a turn whose log-probabilities are its tokens, negative."""
    text = {"given": f"<{number}?", "said": f"{number}!>"}
    values = {"version": 3, "engine": "engine-0", "finish_reason": "stop", "text": f"{number}!", **text, **more}
    return Turn(number, parent, tuple(given), tokens_T=tuple(said), logprobs_T=tuple(-float(t) for t in said), **values)


TURNS = (
    turn(0, None, [10, 11], [12, 13]),
    turn(1, 0, [20], [21, 22]),
    turn(2, 1, [30], [31]),
    turn(3, 1, [40, 41], [42]),
    turn(4, None, [50], [51, 52]),
)


def read(sample):
    """Return prompt, tokens, mask and log-probabilities of each sequence."""
    return [(each.prompt_T, each.tokens_T, each.trained_T, each.logprobs) for each in sequences(PROMPT, sample)]


def test_each_turn_is_trained_on_once_behind_its_own_history():
    sample = trajectory(Returned(reward=0.5), Record(TURNS), COUNTING)
    t, f = True, False
    assert read(sample) == [
        ((10, 11), (12, 13, 20, 21, 22, 30, 31), (t, t, f, t, t, f, t), (-12.0, -13.0, -21.0, -22.0, -31.0)),
        ((10, 11, 12, 13, 20, 21, 22, 40, 41), (42,), (t,), (-42.0,)),
        ((50,), (51, 52), (t, t), (-51.0, -52.0)),
    ]
    assert (sample.reward, sample.version, sample.engine, sample.finish_reason) == (0.5, 3, "engine-0", "stop")
    assert sample.num_trained == len(sample.own_logprobs) == 8


def test_answers_keep_their_place_time_and_calls():
    said = [replace(each, began=float(each.number), seconds=0.5, calls=(f"f{each.number}",)) for each in TURNS]
    sample = trajectory(Returned(), Record(tuple(said)), COUNTING)
    assert [(each.began, each.seconds, each.calls) for each in sample.answers] == [
        (float(number), 0.5, (f"f{number}",)) for number in range(5)
    ]
    found = [sample.tokens_T[each.begin : each.begin + each.tokens] for each in sample.answers]
    assert found == [(12, 13), (21, 22), (31,), (42,), (51, 52)]
    forced = (replace(TURNS[0], trained=False), *TURNS[1:3])
    placed = trajectory(Returned(), Record(forced), COUNTING).answers
    assert [each.begin for each in placed] == [0, 3], "an answer in the prompt has no place"


def test_the_last_branch_alone_has_all_its_turns():
    sample = trajectory(Returned(), Record(TURNS[:4]), replace(COUNTING, branches=Branches.LAST))
    t, f = True, False
    assert [each[:3] for each in read(sample)] == [
        ((10, 11), (12, 13, 20, 21, 22, 40, 41, 42), (t, t, f, t, t, f, f, t))
    ]


def test_each_token_has_the_version_that_made_it_where_rollouts_are_ahead_of_training():
    turns = (
        turn(0, None, [10, 11], [12, 13], version=3),
        turn(1, 0, [20], [21, 22, 23], version=5, carried=((4, 2), (5, 1))),
        turn(2, 1, [30], [31], version=5),
        turn(3, None, [40], [41, 42], version=4),
    )
    sample = trajectory(Returned(), Record(turns), replace(COUNTING, across_versions=True))
    assert sample.tokens_T == (12, 13, 20, 21, 22, 23, 30, 31, 41, 42)
    assert sample.carried == ((3, 2), (4, 3), (5, 3), (4, 2))
    assert sample.versions == ((3, 2), (4, 2), (5, 2), (4, 2)), "what was given is not counted"
    assert (sample.version, sample.oldest) == (5, 3)
    same = (turn(0, None, [10], [11]), turn(1, 0, [20], [21]))
    assert trajectory(Returned(), Record(same), replace(COUNTING, across_versions=True)).carried == ()


def test_an_answer_that_was_forced_into_a_format_is_context():
    turns = (turn(0, None, [10], [11], trained=False), turn(1, 0, [12], [13]), turn(2, 1, [14], [15], trained=False))
    sample = trajectory(Returned(), Record(turns), COUNTING)
    assert [each[:3] for each in read(sample)] == [((10, 11, 12), (13, 14, 15), (True, False, False))]


def test_answers_beside_each_other_are_branches():
    turns = (turn(0, None, [10], [11]), turn(1, None, [10], [12]))
    sample = trajectory(Returned(), Record(turns), COUNTING)
    assert [each[:3] for each in read(sample)] == [((10,), (11,), (True,)), ((10,), (12,), (True,))]


def test_experts_are_those_of_the_last_request_of_a_branch():
    first, second = np.array([1, 2], np.int16), np.array([1, 2, 3], np.int16)
    turns = (turn(0, None, [10], [11], experts=first), turn(1, 0, [12], [13], experts=second))
    sample = trajectory(Returned(), Record(turns), COUNTING)
    assert [each.experts is second for each in sequences(PROMPT, sample)] == [True]


def test_the_whole_session_is_judged_unless_the_agent_says_what():
    record = Record(TURNS[:4])
    assert trajectory(Returned(), record, COUNTING).text == "0!><1?1!><3?3!>"
    assert trajectory(Returned(text="42"), record, COUNTING).text == "42"


@pytest.mark.parametrize(("drop", "dropped"), [(False, False), (True, True)])
def test_an_agent_that_fails_at_a_limit_of_its_session_has_a_truncated_sample(drop, dropped):
    record = Record(TURNS, over="context", refused=1, first_refusal="no room")
    sample = trajectory(Failed("failed: BadRequestError"), record, replace(COUNTING, drop_outgrown=drop))
    assert (sample.finish_reason, sample.dropped, sample.reward) == ("length", dropped, None)
    assert sample.num_trained == (0 if dropped else 8)
    assert all(bool(each.num_trained) is not dropped for each in sequences(PROMPT, sample))


@pytest.mark.parametrize(
    ("ended", "record", "error", "words"),
    [
        (Failed("failed: KeyError: 'x'"), Record(TURNS), GenerateError, "KeyError"),
        (Failed("late", is_late=True), Record(TURNS, over="turns"), TooSlowError, "late"),
        (Returned(reward=1.0), Record(), GenerateError, "never got an answer"),
        (Returned(), Record((TURNS[0], turn(1, 0, [20], [21], version=4))), GenerationFailedError, "weights"),
        (Failed("failed"), Record(TURNS, away="no engine"), RolloutTimeoutError, "no engine"),
        (
            Failed("failed"),
            Record(TURNS, refused=2, first_refusal="n 17"),
            GenerateError,
            "refused request: n 17",
        ),
    ],
    ids=["raises", "late", "silent", "versions", "away", "refused"],
)
def test_an_end_that_gives_no_sample_says_why(ended, record, error, words):
    with pytest.raises(error, match=words):
        trajectory(ended, record, COUNTING)


def test_without_a_reward_of_the_job_the_agent_must_give_one():
    with pytest.raises(GenerateError, match="returned no reward"):
        trajectory(Returned(text="42"), Record(TURNS), replace(COUNTING, judged=False))


def test_an_agent_that_fails_after_its_gateway_has_ended_has_not_failed():
    cut = Record(TURNS, cut_off=1, refused=1, first_refusal="too long")
    with pytest.raises(GatewayError, match="failed: KeyError; its first refused request: too long"):
        trajectory(Failed("failed: KeyError"), cut, COUNTING)
    with pytest.raises(TooSlowError):
        trajectory(Failed("took long", is_late=True), cut, COUNTING)
    assert trajectory(Returned(reward=0.5), cut, COUNTING).reward == 0.5
    assert trajectory(Failed("failed: KeyError"), replace(cut, over="tokens"), COUNTING).finish_reason == "length"


def test_prompts_of_each_request_are_counted_once_with_what_engines_had_of_them():
    rest = turn(5, 4, [], [53], cached=99)  # the end of an answer, by other weights
    turns = (*(replace(each, cached=each.number) for each in TURNS), rest)
    branches = trajectory(Returned(), Record(turns), COUNTING).branches
    asked = [(2, 2 + 2 + 1, 2 + 2 + 1 + 2 + 1), (2 + 2 + 1 + 2 + 2,), (1,)]
    assert [branch.asked_tokens for branch in branches] == [sum(each) for each in asked]
    assert [branch.cached_tokens for branch in branches] == [0 + 1 + 2, 3, 4]
