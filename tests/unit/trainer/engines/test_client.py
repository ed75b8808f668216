"""What engines and the router are asked, and what becomes of their answers."""

import asyncio
import base64
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import aiohttp
import numpy as np
import pytest

from rljob_trainer.engines.client import (
    UNLABELLED,
    Continuation,
    EngineClient,
    EngineError,
    EngineRefusedError,
    EngineUnreachableError,
    GroupAddress,
    RouterClient,
    TokenRequest,
    Worker,
    continuations,
    each,
    open_session,
)
from support.trainer.http_answers import Asked, HttpAnswers, Reply

REQUEST = TokenRequest((1, 2), 1, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=10)
ANSWER = {
    "text": " 83",
    "meta_info": {
        "output_token_logprobs": [[-0.25, 4], [-0.5, 9, "83"]],
        "weight_version": "7@engine-0",
        "finish_reason": {"type": "stop"},
    },
}
Ask = Callable[[EngineClient], Awaitable[Any]]
Question = Callable[[RouterClient], Awaitable[Any]]


def ask(question: Ask, answer: Any = None) -> tuple[Any, Asked]:
    """Return what an engine called a answers, and what it was asked."""
    http = HttpAnswers({"": answer or {}})
    result = asyncio.run(cast(Any, question)(EngineClient(cast(Any, http), "a", "http://a:1")))
    (asked,) = http.asked
    return result, asked


def ask_router(question: Question, answer: Any = None) -> tuple[Any, Asked]:
    http = HttpAnswers({"": answer or {}})
    result = asyncio.run(cast(Any, question)(RouterClient(cast(Any, http), "http://router")))
    (asked,) = http.asked
    return result, asked


ADDRESS = GroupAddress("10.0.0.9", 23456, rank_offset=3, world_size=5, group_name="rljob-1", backend="nccl")
QUESTIONS: dict[str, tuple[Ask, str, str, Any]] = {
    "probe": (lambda engine: engine.probe(5.0), "GET", "/server_info", None),
    "pause": (lambda engine: engine.pause("retract", 5.0), "POST", "/pause_generation", {"mode": "retract"}),
    "resume": (lambda engine: engine.resume(5.0), "POST", "/continue_generation", {"torch_empty_cache": False}),
    "abort_all": (lambda engine: engine.abort_all(5.0), "POST", "/abort_request", {"abort_all": True}),
    "join_group": (
        lambda engine: engine.join_group(ADDRESS, 5.0),
        "POST",
        "/init_weights_update_group",
        {
            "master_address": "10.0.0.9",
            "master_port": 23456,
            "rank_offset": 3,
            "world_size": 5,
            "group_name": "rljob-1",
            "backend": "nccl",
        },
    ),
    "leave_group": (
        lambda engine: engine.leave_group("rljob-1", 5.0),
        "POST",
        "/destroy_weights_update_group",
        {"group_name": "rljob-1"},
    ),
    "receive": (
        lambda engine: engine.receive(["w"], ["bfloat16"], [(2, 3)], "rljob-1", True, 5.0),
        "POST",
        "/update_weights_from_distributed",
        {
            "names": ["w"],
            "dtypes": ["bfloat16"],
            "shapes": [[2, 3]],
            "group_name": "rljob-1",
            "flush_cache": True,
            "torch_empty_cache": False,
        },
    ),
    "read_weights": (
        lambda engine: engine.read_weights("/dev/shm/w", 5.0),
        "POST",
        "/update_weights_from_disk",
        {"model_path": "/dev/shm/w", "load_format": "auto", "flush_cache": True, "torch_empty_cache": False},
    ),
    "label_weights": (
        lambda engine: engine.label_weights(7, 5.0),
        "POST",
        "/update_weight_version",
        {"new_version": "7@a", "abort_all_requests": False},
    ),
    "resume_memory": (
        lambda engine: engine.resume_memory({"weights", "kv_cache"}, 5.0),
        "POST",
        "/resume_memory_occupation",
        {"tags": ["kv_cache", "weights"]},
    ),
}


@pytest.mark.parametrize(("question", "method", "path", "body"), QUESTIONS.values(), ids=QUESTIONS)
def test_an_engine_is_asked_in_the_words_of_sglang(question: Ask, method: str, path: str, body: Any) -> None:
    _, asked = ask(question)
    assert asked == Asked(method, f"http://a:1{path}", body, 5.0)


@pytest.mark.parametrize(("question", "answer"), [(question, {}) for question, *_ in QUESTIONS.values()], ids=QUESTIONS)
def test_an_engine_is_shown_the_key_that_it_demands(question: Ask, answer: Any) -> None:
    http = cast(Any, HttpAnswers({"": answer}, key="a key"))
    asyncio.run(cast(Any, question)(EngineClient(http, "a", "http://a:1", "a key")))
    for engine in (EngineClient(http, "a", "http://a:1"), EngineClient(http, "a", "http://a:1", "another")):
        with pytest.raises(EngineError, match=r"^engine a: .* 401 Unauthorized$"):
            asyncio.run(cast(Any, question)(engine))


def test_the_router_is_shown_the_key_and_told_to_show_it_to_its_engines() -> None:
    http = HttpAnswers({"/workers": {"workers": []}, "/generate": ANSWER}, key="a key")
    router = RouterClient(cast(Any, http), "http://router", "a key")
    asyncio.run(router.add_worker("http://a:1"))
    asyncio.run(router.remove_worker("7"))
    assert asyncio.run(router.workers()) == ()
    assert len(asyncio.run(router.generate(REQUEST, 5.0))) == 1
    assert http.asked[0].body == {"url": "http://a:1", "api_key": "a key"}


def test_a_key_is_not_shown_with_its_client() -> None:
    http = cast(Any, None)
    made = [EngineClient(http, "a", "http://a:1", "a key"), RouterClient(http, "http://router", "a key")]
    assert "a key" not in repr(made)
    assert all(each.key == "a key" for each in made)


def test_an_engine_gives_memory_back_once_it_is_idle() -> None:
    http = HttpAnswers({"": {}})
    asyncio.run(EngineClient(cast(Any, http), "a", "http://a:1").release_memory({"weights", "kv_cache"}, 5.0))
    assert http.asked == [
        Asked("POST", "http://a:1/flush_cache?timeout=5", {}, 5.0),
        Asked("POST", "http://a:1/release_memory_occupation", {"tags": ["kv_cache", "weights"]}, 5.0),
    ]


ROUTER_QUESTIONS: dict[str, tuple[Question, str, str, Any]] = {
    "liveness": (lambda router: router.is_alive(), "GET", "/liveness", None),
    "add": (lambda router: router.add_worker("http://a:1"), "POST", "/workers", {"url": "http://a:1"}),
    "remove": (lambda router: router.remove_worker("7"), "DELETE", "/workers/7", None),
}


@pytest.mark.parametrize(("question", "method", "path", "body"), ROUTER_QUESTIONS.values(), ids=ROUTER_QUESTIONS)
def test_the_router_is_asked_in_its_words(question: Question, method: str, path: str, body: Any) -> None:
    _, asked = ask_router(question)
    assert asked == Asked(method, f"http://router{path}", body, 10.0)


def test_a_request_is_written_whatever_its_text_and_numbers() -> None:
    async def written(content: Any) -> Any:
        async with open_session() as session:
            return session.json_serialize(content)

    for content in ({"input_ids": [1, 2], "stop": ["a\n"], "n": None}, {"stop": "\ud800"}, {"seed": 2**70}):
        assert json.loads(asyncio.run(written(content))) == content


def test_the_router_lists_its_workers() -> None:
    listed, _ = ask_router(
        lambda router: router.workers(), {"workers": [{"id": "7", "url": "http://a:1", "is_healthy": False}]}
    )
    assert listed == (Worker("7", "http://a:1", healthy=False),)


@pytest.mark.parametrize(
    ("answer", "alive"), [({}, True), (aiohttp.ServerDisconnectedError(), False), (TimeoutError(), False)]
)
def test_a_router_that_answers_is_alive(answer: Any, alive: bool) -> None:
    assert ask_router(lambda router: router.is_alive(), answer)[0] is alive


def test_a_request_for_tokens_names_all_that_sampling_depends_on() -> None:
    request = TokenRequest((1, 2), 4, 0.7, 0.9, 50, 10, stop=("\n",), stop_token_ids=(3,))
    _, asked = ask_router(lambda router: router.generate(request, 30.0), [ANSWER])
    assert asked == Asked(
        "POST",
        "http://router/generate",
        {
            "input_ids": [1, 2],
            "return_logprob": True,
            "sampling_params": {
                "n": 4,
                "temperature": 0.7,
                "top_p": 0.9,
                "top_k": 50,
                "max_new_tokens": 10,
                "stop": ["\n"],
                "stop_token_ids": [3],
            },
        },
        30.0,
    )


def test_a_log_probability_that_json_cannot_hold_is_no_number() -> None:
    meta = ANSWER["meta_info"] | {"output_token_logprobs": [[None, 4], [-0.5, 9]]}  # type: ignore[operator]
    (found,) = continuations(ANSWER | {"meta_info": meta}, "a")
    assert math.isnan(found.logprobs_T[0]) and found.logprobs_T[1:] == (-0.5,)


CONTINUATION = Continuation((4, 9), (-0.25, -0.5), " 83", 7, "engine-0", "stop")


@pytest.mark.parametrize("answer", [ANSWER, [ANSWER]], ids=["one", "a list"])
def test_an_answer_holds_tokens_probabilities_version_and_engine(answer: Any) -> None:
    assert ask(lambda engine: engine.generate(REQUEST, 5.0), answer)[0] == (CONTINUATION,)


def changed(**meta: Any) -> dict[str, Any]:
    return {**ANSWER, "meta_info": {**cast(Any, ANSWER["meta_info"]), **meta}}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (changed(weight_version="default"), replace(CONTINUATION, version=UNLABELLED, engine="a")),
        (changed(finish_reason=None), replace(CONTINUATION, finish_reason="abort")),
        (changed(finish_reason={"type": "length", "length": 10}), replace(CONTINUATION, finish_reason="length")),
        ({"meta_info": ANSWER["meta_info"]}, replace(CONTINUATION, text="")),
    ],
    ids=["unlabelled weights", "aborted", "too long", "no text"],
)
def test_an_answer_may_lack_a_label_an_end_and_a_text(answer: Any, expected: Continuation) -> None:
    assert ask(lambda engine: engine.generate(REQUEST, 5.0), answer)[0] == (expected,)


def test_the_experts_of_an_answer_are_its_numbers_in_half_the_memory() -> None:
    routed = base64.b64encode(np.asarray([0, 3, 300, 2], np.int32).tobytes()).decode()
    (found,) = continuations(changed(routed_experts=routed), "a")
    assert found.experts is not None
    assert (found.experts.tolist(), found.experts.dtype) == ([0, 3, 300, 2], np.int16)


@pytest.mark.parametrize("answer", [ANSWER, changed(routed_experts=None)], ids=["no field", "null"])
def test_an_answer_may_lack_experts(answer: Any) -> None:
    assert continuations(answer, "a")[0].experts is None


def test_requests_that_run_and_requests_that_wait_count_on_every_rank() -> None:
    loads = [{"num_running_reqs": 1, "num_waiting_reqs": 2}, {"num_running_reqs": 4, "num_waiting_reqs": 8}]
    number, asked = ask(lambda engine: engine.num_requests(5.0), {"loads": loads})
    assert number == 15
    assert asked == Asked("GET", "http://a:1/v1/loads?include=core", None, 5.0)


def test_each_rank_gives_its_digests() -> None:
    digests, asked = ask(lambda engine: engine.digests(5.0), {"ranks": [{"checksums": {"w": "1"}, "rank": 0}]})
    assert digests == ({"w": "1"},)
    assert asked == Asked("POST", "http://a:1/weights_checker", {"action": "checksum"}, 5.0)


def failure(answer: Any) -> EngineError:
    with pytest.raises(EngineError) as raised:
        ask_router(lambda router: router.generate(REQUEST, 5.0), answer)
    return raised.value


def refusal(status: int, message: str) -> EngineError:
    return failure(Reply(status, {"error": {"message": message}}))


def test_a_request_that_was_aborted_before_its_first_token_may_be_sent_again() -> None:
    error = refusal(400, "Request 5ad9f3 was aborted")
    assert not isinstance(error, EngineRefusedError)


@pytest.mark.parametrize(
    ("status", "message"), [(400, "The input is too long"), (413, "too large"), (422, "n: not an integer")]
)
def test_a_request_that_is_wrong_may_not(status: int, message: str) -> None:
    assert isinstance(refusal(status, message), EngineRefusedError)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"error": {"message": "busy"}}, "busy"),
        ({"error": "busy"}, "busy"),
        ({"message": "busy"}, "busy"),
        ({"error": {"code": 7}}, "{'code': 7}"),
        ("busy", "busy"),
        ("x" * 600, "x" * 500),
    ],
)
def test_an_error_says_what_was_asked_and_what_was_answered(content: Any, said: str) -> None:
    error = failure(Reply(503, content, is_json=isinstance(content, dict)))
    assert str(error) == f"router: POST /generate: 503 {said}"
    assert not isinstance(error, EngineUnreachableError | EngineRefusedError)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (TimeoutError(), "router: POST /generate: no answer within 5 s"),
        (ConnectionResetError("reset"), "router: POST /generate: ConnectionResetError: reset"),
        (aiohttp.ClientPayloadError("cut"), "router: POST /generate: ClientPayloadError: cut"),
    ],
)
def test_no_answer_is_a_kind_of_its_own(answer: Exception, said: str) -> None:
    error = failure(answer)
    assert (type(error), str(error)) == (EngineUnreachableError, said)


async def answers(value: object) -> object:
    if isinstance(value, Exception):
        raise value
    return value


def test_results_and_failures_of_many_engines_are_distinguished() -> None:
    async def act() -> tuple[dict[str, Any], dict[str, str]]:
        return await each({"a": answers(1), "b": answers(EngineError("busy")), "c": answers(None)})

    assert asyncio.run(act()) == ({"a": 1, "c": None}, {"b": "busy"})


def test_a_defect_in_one_of_many_is_raised() -> None:
    async def act() -> None:
        await each({"a": answers(1), "b": answers(KeyError("loads"))})

    with pytest.raises(KeyError):
        asyncio.run(act())
