"""A service that judges, asked over real HTTP: one that answers, is slow, fails, hangs, and talks nonsense."""

import asyncio
import gc
import json
import socket
import warnings
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rljob_api.sections import Judging, Remote, RewardKind
from rljob_trainer.processes.background import Background
from rljob_trainer.reporting.losses import AwayError, Losses, Outage
from rljob_trainer.rewards.ahead import Room
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.function import Failure, Response
from rljob_trainer.rewards.remote import EarlyRemote, RemoteReward, remote_reward
from support.trainer.judging import prompt, responses
from support.waiting import others_run, until

Answers = Callable[["Service", dict[str, Any]], Awaitable[web.StreamResponse]]


class Service:
    """Answers as it is set up, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: Answers = number_of_the_response
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.transports: list[asyncio.Transport] = []
        self.under_way = 0
        self.most_under_way = 0
        self.url = ""

    async def judge(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        self.bodies.append(body := await request.json())
        assert request.transport is not None
        self.transports.append(request.transport)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await self.answers(self, body)
        finally:
            self.under_way -= 1

    async def start(self) -> web.AppRunner:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/judge", self.judge)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/judge"
        return runner


async def number_of_the_response(service: Service, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response(float(body["response"]))


def always(status: int, text: str, **options: Any) -> Answers:
    async def answer(service: Service, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status, text=text, **options)

    return answer


def first(wrong: Answers, times: int) -> Answers:
    async def answer(service: Service, body: dict[str, Any]) -> web.StreamResponse:
        return await (wrong if len(service.bodies) <= times else number_of_the_response)(service, body)

    return answer


async def hang(service: Service, body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def together(number: int) -> Answers:
    """Answer so many requests at once, and none before they have come."""
    barrier = asyncio.Barrier(number)

    async def answer(service: Service, body: dict[str, Any]) -> web.StreamResponse:
        await barrier.wait()
        await others_run()
        return await number_of_the_response(service, body)

    return answer


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock runs ahead when a test wants it."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


async def hang_up(service: Service, body: dict[str, Any]) -> web.StreamResponse:
    service.transports[-1].close()
    return web.Response()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    with Background() as background:
        runner = background.run(made.start(), timeout_s=10)
        yield made
        background.run(runner.cleanup(), timeout_s=10)


def reward(
    service: Service,
    timeout_s: float = 60.0,
    concurrency: int = 8,
    metadata: bool = False,
    pauses: list[float] | None = None,
    **remote: Any,
) -> RemoteReward:
    async def pause(seconds: float) -> None:
        if pauses is not None:
            pauses.append(seconds)

    asked = Remote(url=service.url, **{"retries": 2, **remote})
    return RemoteReward(asked, timeout_s, concurrency, metadata, {}, lambda: None, pause)


def failure(made: RemoteReward) -> str:
    (found,) = made(responses("1"))
    assert isinstance(found, Failure)
    return found.reason


def test_the_body_is_that_of_slime_and_the_scores_come_in_order(service: Service):
    assert list(reward(service)(responses("3", "1.5", of=prompt(level=3)))) == [3.0, 1.5]
    assert sorted(service.bodies, key=json.dumps) == [
        {"prompt": "47 + 36 =", "response": "1.5", "label": "83"},
        {"prompt": "47 + 36 =", "response": "3", "label": "83"},
    ]


def test_metadata_is_sent_where_the_manifest_names_its_column(service: Service):
    list(reward(service, metadata=True)([Response(prompt(level=3, day=date(2026, 11, 21)), "1")]))
    assert service.bodies[0]["metadata"] == {"level": 3, "day": "2026-11-21"}


def test_the_number_may_be_in_a_field_of_the_answer(service: Service):
    service.answers = always(200, '{"score": 0.25, "why": "close"}')
    assert list(reward(service, answer_key="score")(responses("1"))) == [0.25]


def test_no_more_requests_are_under_way_than_the_manifest_allows(service: Service):
    service.answers = together(3)
    assert list(reward(service, concurrency=3)(responses(*map(str, range(9))))) == list(map(float, range(9)))
    assert service.most_under_way == 3


def test_waiting_for_a_turn_does_not_count_as_waiting_for_an_answer(service: Service):
    loop = JumpingLoop()

    async def slowly(service: Service, body: dict[str, Any]) -> web.StreamResponse:
        loop.ahead_s += 60.0
        return await number_of_the_response(service, body)

    service.answers = slowly
    made = replace(reward(service, timeout_s=100.0, concurrency=1, retries=0), new_loop=lambda: loop)
    assert list(made(responses(*map(str, range(12))))) == list(map(float, range(12)))
    assert loop.ahead_s == 720.0


@pytest.mark.parametrize("wrong", [always(503, "busy"), always(429, "slow down"), always(500, "oh"), hang, hang_up])
def test_a_service_that_recovers_is_asked_again(service: Service, wrong: Answers):
    service.answers = first(wrong, times=2)
    assert list(reward(service, timeout_s=2.0 if wrong is hang else 60.0)(responses("7"))) == [7.0]
    assert len(service.bodies) == 3


def test_the_service_is_asked_again_after_a_pause_that_grows_to_half_a_minute(service: Service):
    service.answers, pauses = always(503, "busy"), []
    failure(reward(service, pauses=pauses, retries=8))
    means = [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert len(pauses) == len(means)
    assert all(0.5 * mean <= pause <= 1.5 * mean for pause, mean in zip(pauses, means, strict=True))


def test_who_waits_for_the_service_does_not_come_back_at_the_same_time(service: Service):
    service.answers, pauses = always(503, "busy"), []
    list(reward(service, pauses=pauses, retries=1)(responses(*map(str, range(20)))))
    assert len(set(pauses)) == 20


@pytest.mark.parametrize("wanted", [1, 3])
def test_no_session_stays_open_whether_or_not_all_scores_are_taken(service: Service, wanted: int):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        scores = iter(reward(service)(responses("1", "2", "3")))
        taken = [next(scores) for _ in range(wanted)]
        del scores
        gc.collect()
    assert len(taken) == wanted
    assert [str(each.message) for each in seen if "client session" in str(each.message)] == []


@pytest.mark.parametrize(
    ("wrong", "asked", "said"),
    [
        (always(503, "busy"), 3, "answered 503: 'busy' (asked 3 times); a JSON answer is wanted: a number"),
        (hang, 3, "no answer within 0.5 s (asked 3 times)"),
        (always(401, "who are you?"), 1, "answered 401: 'who are you?'; a JSON"),
        (always(302, "", headers={"Location": "/other"}), 1, "answered 302: ''"),
        (always(200, "<html>" + "x" * 500), 1, "answered '<html>" + "x" * 194 + "'; a JSON answer is wanted"),
        (always(200, ""), 1, "answered ''"),
        (always(200, "NaN"), 1, "answered 'NaN'"),
        (always(200, '"0.5"'), 1, "answered '\"0.5\"'"),
        (always(200, "[0.5]"), 1, "answered '[0.5]'"),
        (always(200, "1" + "0" * 400), 1, "answered '1000"),
        (always(200, "0" * 2**21), 1, "answered '0000"),
        (always(200, "\udcff".encode("utf-8", "surrogateescape").decode("latin-1")), 1, "answered 'ÿ'"),
    ],
)
def test_what_is_no_answer_is_reported_with_prompt_and_address(service: Service, wrong: Answers, asked: int, said: str):
    service.answers = wrong
    assert failure(reward(service, timeout_s=0.5 if wrong is hang else 60.0)).startswith(
        f"{service.url} on prompt 0:0: {said}"
    )
    assert len(service.bodies) == asked


def test_an_answer_without_the_field_is_reported(service: Service):
    service.answers = always(200, '{"score": 0.25}')
    assert failure(reward(service, answer_key="reward")).endswith(
        "answered '{\"score\": 0.25}'; a JSON answer is wanted: an object with a number in 'reward'"
    )


def test_nobody_there_is_reported(service: Service):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        service.url = f"http://127.0.0.1:{free.getsockname()[1]}/"
    assert "ClientConnectorError: Cannot connect to host" in failure(reward(service))


def test_whoever_takes_no_failure_does_not_wait_for_the_others(service: Service):
    service.answers = first(always(400, "bad"), times=1)
    made = reward(service, concurrency=1)
    scores = iter(made(responses(*map(str, range(50)))))
    assert isinstance(next(scores), Failure)
    del scores
    assert len(service.bodies) < 50


def test_headers_come_from_the_environment_and_from_files_as_they_are_now(service: Service, tmp_path: Path):
    token = tmp_path / "token"
    remote = Remote(url=service.url, headers_from_env={"X-Who": "WHO"}, headers_from_file={"Authorization": str(token)})
    token.write_text("Bearer 1\n")
    made = RemoteReward(remote, 5.0, 1, False, {"WHO": "trainer"}, lambda: None)
    list(made(responses("1")))
    token.write_text("Bearer 2\n")
    list(made(responses("1")))
    assert [(each["X-Who"], each["Authorization"]) for each in service.headers] == [
        ("trainer", "Bearer 1"),
        ("trainer", "Bearer 2"),
    ]


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"headers_from_env": {"X": "NOWHERE"}}, "headersFromEnv.X: the environment variable NOWHERE is not set"),
        ({"headers_from_file": {"X": "/no/such"}}, "headersFromFile.X: /no/such cannot be read: .*No such file"),
    ],
)
def test_a_header_that_cannot_be_had_is_refused_before_the_run(headers: dict[str, Any], said: str):
    spec = Judging(kind=RewardKind.REMOTE, remote=Remote(url="http://localhost", **headers))
    with pytest.raises(RewardError, match=said):
        remote_reward(spec, False, {}, lambda: None)


def patient(service: Service, outage: Outage, retries: int = 2, concurrency: int = 8) -> RemoteReward:
    async def pause(seconds: float) -> None:
        await others_run()

    remote = Remote(url=service.url, retries=retries)
    outage.tries = retries + 1
    return RemoteReward(remote, 60.0, concurrency, False, {}, lambda: None, pause, outage=outage)


@pytest.mark.parametrize("wrong", [always(503, "busy"), always(502, ""), always(429, "slow down"), hang_up])
def test_a_judge_that_is_away_is_waited_for_although_it_has_never_answered(service: Service, wrong: Answers):
    service.answers, losses = first(wrong, times=30), Losses()
    assert list(patient(service, Outage("the judge", losses))(responses("1", "2", "3"))) == [1.0, 2.0, 3.0]
    assert (losses.take(), losses.waiting_for) == ({}, None)


@pytest.mark.parametrize("wrong", [always(500, "oh"), always(503, "busy"), hang_up])
def test_one_that_stays_away_ends_the_attempt_and_not_the_job(service: Service, wrong: Answers):
    service.answers = wrong
    outage = Outage("the judge", has_worked=True, longest_s=300.0)
    with pytest.raises(AwayError, match=r"^the judge has not worked for 3\d\d s \(recovery\.outageSeconds\)"):
        list(patient(service, outage)(responses("1", "2")))


def test_a_response_that_breaks_a_judge_fails_alone(service: Service):
    async def broken_by_seven(service: Service, body: dict[str, Any]) -> web.StreamResponse:
        if body["response"] == "7":
            return web.Response(status=500, text="stack overflow")
        return await number_of_the_response(service, body)

    service.answers = broken_by_seven
    one, seven, two = patient(service, Outage("the judge"), concurrency=1)(responses("1", "7", "2"))
    assert (one, two) == (1.0, 2.0)
    assert isinstance(seven, Failure) and "answered 500: 'stack overflow' (asked 3 times)" in seven.reason


def test_a_judge_that_has_only_ever_failed_is_not_waited_for(service: Service):
    service.answers = always(500, "no such model")
    assert isinstance(next(iter(patient(service, Outage("the judge"))(responses("1")))), Failure)
    assert len(service.bodies) == 3


@pytest.fixture
def early(service: Service) -> Iterator[Callable[..., EarlyRemote]]:
    made: list[EarlyRemote] = []

    def one(most: int = 10**6, **settings: Any) -> EarlyRemote:
        made.append(EarlyRemote(reward(service, **settings), Room(most)))
        return made[-1]

    yield one
    for each in made:
        each.close()


def test_a_service_is_asked_before_its_scores_are_wanted_and_for_several_groups_at_once(service: Service, early):
    service.answers = together(4)
    made = early(concurrency=4)
    first = made.begin(responses("1", "2", of=prompt(uid="0:1")))
    second = made.begin(responses("3", "4", of=prompt(uid="0:2")))
    assert (list(second), list(first)) == ([3.0, 4.0], [1.0, 2.0])


def test_requests_for_all_groups_together_are_as_many_as_the_manifest_allows(service: Service, early):
    service.answers = together(3)
    made = early(concurrency=3)
    asked = [responses("1", "2", of=prompt(uid=f"0:{row}")) for row in range(6)]
    begun = [made.begin(each) for each in asked[:3]]
    later = made([response for each in asked[3:] for response in each])
    assert [*later, *(score for each in begun for score in each)] == [1.0, 2.0] * 6
    assert service.most_under_way == 3


def test_responses_that_wait_for_a_service_are_bounded(service: Service, early):
    service.answers = hang
    made = early(most=1000)
    assert made.begin(responses("1" * 600, of=prompt())) is not None
    assert made.begin(responses("1" * 600, of=prompt())) is None
    made.close()
    until(lambda: made.room.taken == 0)


def test_a_service_that_stays_away_while_others_are_sampled_ends_the_attempt_when_scores_are_wanted(
    service: Service, early
):
    service.answers = always(503, "busy")
    made = EarlyRemote(patient(service, Outage("the judge", has_worked=True, longest_s=300.0)), Room(1000))
    begun = made.begin(responses("1", of=prompt()))
    with pytest.raises(AwayError, match="the judge has not worked for"):
        list(begun)
    made.close()
