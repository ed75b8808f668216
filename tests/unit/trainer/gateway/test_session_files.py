"""What a gateway reads back of the sessions of one that was killed, and which answers it gives again."""

import math
from dataclasses import replace

import httpx
import numpy as np
import openai
import pytest

from rljob_trainer.gateway.chat import Gateway
from rljob_trainer.gateway.parsing import Parsers
from rljob_trainer.gateway.record import Opening
from rljob_trainer.gateway.session_files import Answered, Condition, Reply, SessionFiles
from rljob_trainer.gateway.tree import Turn
from support.trainer.scripted_gateway import OPENING, SETTINGS
from support.trainer.scripted_model import Says
from support.waiting import eventually, until

ASKED = {"role": "user", "content": "1 + 1 ="}
MORE = {"role": "user", "content": "And 2 + 2?"}
NAME = "0123456789abcdef"
EXPERTS = np.arange(8, dtype=np.int16)
TURN = Turn(0, None, (1, 2), "q", (3, 4), (-0.5, -1.5), "a<end>", "a", 7, "engine-0", "stop", experts=EXPERTS)
TURN = replace(TURN, calls=("look", "add"), began=1.7e9, seconds=0.25)
REPLY = Reply("chatcmpl-1", "wanted", (Answered("key", (TURN, replace(TURN, number=1, parent=0, carried=((6, 1),)))),))
MET = Condition(over="turns", refused=2, first_refusal="no", cut_off=1)


def again(files, served):
    """Return the session as the next gateway has it."""
    gateway = Gateway(SETTINGS, served.router.tokenizer, lambda url: served.session.engines, Parsers(), files)
    gateway.restore()
    return gateway, gateway.session(served.session.name, served.session.key)


def kept(directory):
    """Return what is read back of the one session of a directory."""
    ((_, found, _),) = SessionFiles(directory).read()
    return found


@pytest.fixture
def file(tmp_path):
    made = SessionFiles(tmp_path).new(NAME)
    made.opened("secret", OPENING)
    return made


def test_what_was_noted_is_read_back(file, tmp_path):
    file.asked("chatcmpl-1")
    file.answered(REPLY, is_awaited=True)
    file.stored("resp_1", None, (ASKED, MORE))
    file.stored("resp_2", "resp_1", (ASKED,))
    file.ended(("chatcmpl-1",), MET)
    file.asked("chatcmpl-2")
    found = kept(tmp_path)
    assert (found.key, found.opening, found.answers) == ("secret", OPENING, list(REPLY.answers))
    turn = found.answers[0].turns[0]
    assert np.array_equal(turn.experts, EXPERTS)
    assert (turn.began, turn.seconds) == (1.7e9, 0.25)
    assert found.stored == {"resp_1": (ASKED, MORE), "resp_2": (ASKED, MORE, ASKED)}
    assert (found.condition, list(found.under_way)) == (MET, ["chatcmpl-2"])
    assert found.waiting == {"chatcmpl-1": REPLY}
    file.left("chatcmpl-1")
    assert kept(tmp_path).waiting == {}


def test_an_answer_whose_client_went_away_waits_for_nobody(file, tmp_path):
    file.answered(REPLY, is_awaited=False)
    found = kept(tmp_path)
    assert (len(found.answers), found.waiting) == (1, {})


def test_a_line_that_was_cut_off_says_nothing_and_what_follows_is_whole(file, tmp_path):
    file.answered(REPLY, is_awaited=True)
    path = tmp_path / NAME
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[1][:40])
    ((_, found, again_),) = SessionFiles(tmp_path).read()
    assert len(found.answers) == 1
    assert path.read_bytes() == whole
    again_.left("chatcmpl-1")
    assert kept(tmp_path).waiting == {}


@pytest.mark.parametrize("content", [b"", b"{}\n", b"no JSON\n", b'{"opened": {"key": "k"}}\n'])
def test_a_file_that_says_nothing_goes(tmp_path, content):
    path = tmp_path / NAME
    path.touch(0o600)
    path.write_bytes(content)
    assert list(SessionFiles(tmp_path).read()) == []
    assert not path.exists()


def test_a_session_without_its_first_turns_is_none(file, tmp_path):
    turns = (replace(TURN, number=1),)
    file.answered(replace(REPLY, answers=(Answered("key", turns),)), is_awaited=True)
    assert list(SessionFiles(tmp_path).read()) == []


@pytest.mark.parametrize("name", ["other", "../abcdef0123"])
def test_files_of_others_are_not_read(tmp_path, name):
    directory = tmp_path / "sessions"
    directory.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("{}\n")
    (directory / NAME).symlink_to(elsewhere)
    (directory / name.removeprefix("../")).write_text("{}\n")
    assert list(SessionFiles(directory).read()) == []
    assert elsewhere.exists()


def test_all_files_together_are_bounded_and_a_session_beyond_it_is_in_no_file(tmp_path):
    files = SessionFiles(tmp_path, most_bytes=1000)
    small, large = files.new(NAME), files.new("f" * 16)
    for each in (small, large):
        each.opened("secret", OPENING)
    large.ended(("x" * 900,), MET)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert files.used == (tmp_path / NAME).stat().st_size
    large.asked("chatcmpl-1")
    assert not (tmp_path / ("f" * 16)).exists()
    assert list(SessionFiles(tmp_path, most_bytes=10).read()) == []


def test_only_their_owner_reads_files_and_they_go_with_the_session(serve):
    served = serve([Says("two")])
    served.ask([ASKED])
    (path,) = served.files._directory.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    served.gateway.close(served.session.name)
    assert (list(served.files._directory.iterdir()), served.files.used) == ([], 0)


def test_the_next_gateway_continues_the_tree(serve):
    served = serve([Says("two"), Says("four")])
    said = served.ask([ASKED]).choices[0].message
    _, session = again(served.files, served)
    assert (session.record, session.begun, session.written) == (served.session.record, 1, served.session.written)
    served.gateway._sessions[session.name] = session
    served.ask([ASKED, said, MORE])
    assert [turn.parent for turn in session.tree.turns] == [None, 0]
    assert session.tree.turns[0] == served.turns[0]


@pytest.mark.parametrize("logprobs", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_who_asks_again_for_what_did_not_leave_gets_it_once(serve, stream, logprobs):
    served = serve([Says("two"), Says("2"), Says("six"), Says("four"), Says("ten")])
    session = served.session
    session.left = lambda name: None  # it was killed before it noted that the answers had left
    first = read(served, stream, logprobs)
    _, restored = again(served.files, served)
    served.gateway._sessions[session.name] = restored
    assert read(served, stream, logprobs) == first
    assert sorted(first[0]) == ["2", "two"]
    assert first[1] == [len(turn.tokens_T) for turn in session.tree.turns if logprobs]
    assert len(restored.tree.turns) == 2
    assert sorted(read(served, stream, logprobs)[0]) == ["four", "six"]
    served.ask([ASKED, {"role": "assistant", "content": "two"}, MORE])
    assert restored.tree.turns[restored.tree.turns[-1].parent].text == "two"
    until(lambda: not again(served.files, served)[1].waiting)


def read(served, stream, logprobs):
    """Return the texts of two answers, and the numbers of their log-probabilities."""
    with served.client() as client:
        asked = {"model": "any", "messages": [ASKED], "n": 2, "logprobs": logprobs}
        if not stream:
            choices = client.chat.completions.create(**asked).choices
            return [each.message.content for each in choices], [
                len(each.logprobs.content) for each in choices if logprobs
            ]
        choices = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
        texts = ["".join(each.delta.content or "" for each in choices if each.index == index) for index in (0, 1)]
        return texts, [len(each.logprobs.content) for each in choices if each.logprobs]


def test_another_request_does_not_get_what_waits(serve):
    served = serve([Says("two"), Says("four")])
    served.session.left = lambda name: None
    served.ask([ASKED])
    _, restored = again(served.files, served)
    served.gateway._sessions[restored.name] = restored
    assert served.ask([ASKED], max_tokens=3).choices[0].message.content == "four"
    assert served.ask([ASKED]).choices[0].message.content == "two"


def test_a_client_that_hung_up_before_its_answer_gets_it_when_it_asks_again(serve):
    served = serve([Says("two"), Says("four")])
    session = served.session
    session.held_back("none")
    assert session.waiting == []
    session.left, leaves = session.held_back, session.left  # as if writing had failed
    served.ask([ASKED])
    eventually(lambda: session.waiting, bool)  # the gateway notes it after the client has its answer
    session.left = leaves
    assert served.ask([ASKED]).choices[0].message.content == "two"
    assert len(session.tree.turns) == 1
    assert served.ask([ASKED]).choices[0].message.content == "four"


def test_what_was_refused_and_what_was_under_way_is_known_to_the_next(serve):
    served = serve([Says("two")])
    served.ask([ASKED])
    with served.client() as client, pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "1 " * 3000}])
    served.session.file.asked("chatcmpl-9")
    _, restored = again(served.files, served)
    met = restored.condition
    assert (met.over, met.refused, met.cut_off) == ("context", 1, 1)
    assert met.first_refusal == served.session.first_refusal
    assert again(served.files, served)[1].condition == met, "it was counted once"


def test_responses_are_continued_by_name_after_a_restart(serve):
    served = serve([Says("two"), Says("four"), Says("six")])
    with served.client() as client:
        ask = client.responses.create
        first = ask(model="any", input="1 + 1 =")
        second = ask(model="any", input="And 2 + 2?", previous_response_id=first.id)
        _, restored = again(served.files, served)
        served.gateway._sessions[restored.name] = restored
        third = ask(model="any", input="And 3 + 3?", previous_response_id=second.id)
    assert third.output_text == "six"
    assert [turn.parent for turn in restored.tree.turns] == [None, 0, 1]


def test_the_driver_reads_a_session_before_it_closes_it(serve):
    served = serve([Says("two")])
    served.ask([ASKED])
    url, key = f"{served.url}/sessions/{served.session.name}", {"Authorization": "Bearer admin"}
    first, second = httpx.get(url, headers=key), httpx.get(url, headers=key)
    assert first.json() == second.json()
    assert [turn["text"] for turn in first.json()["turns"]] == ["two"]
    assert httpx.get(url, headers={"Authorization": f"Bearer {served.session.key}"}).status_code == 401
    assert httpx.delete(url, headers=key).status_code == 200
    assert httpx.get(url, headers=key).status_code == 404


def test_log_probabilities_that_are_no_numbers_stay_none(tmp_path):
    file = SessionFiles(tmp_path).new(NAME)
    file.opened("secret", Opening("http://router", 1.0, 1.0, -1))
    turn = replace(TURN, logprobs_T=(math.nan, -0.5), experts=None)
    file.answered(replace(REPLY, answers=(Answered("key", (turn,)),)), is_awaited=True)
    assert math.isnan(kept(tmp_path).answers[0].turns[0].logprobs_T[0])
