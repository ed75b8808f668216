"""The control protocol over a real socket: who is let in, what is answered, and what an order changes."""

import asyncio
import json
import stat
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from rljob_api.control import (
    EVICT,
    LONGEST_WAIT_S,
    EngineState,
    EngineStatus,
    Eviction,
    EvictionResult,
    RunState,
    Scale,
    Status,
    eviction_token,
)
from rljob_trainer.control.orders import OrderBook
from rljob_trainer.control.pod_eviction import NoAnswer, post
from rljob_trainer.control.server import ControlServer, TokenError, changed_within
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.processes.background import Background
from support.trainer import virtual_time
from support.waiting import until

TOKEN = "a-secret"


@dataclass
class Driver:
    """A control server with what is behind it, and what it carried out."""

    status_store: StatusStore
    desired: OrderBook
    server: ControlServer
    url: str
    directory: Path
    restarts: list[tuple[str, int, str]]
    scales: list[int]
    close: Callable[[], None]

    def ask(self, method: str, path: str, body: Any = None, token: str = f"Bearer {TOKEN}") -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Authorization": token}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


async def until_it_changes(changed: asyncio.Event, timeout_s: float) -> None:
    await changed.wait()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    engine = EngineStatus(name="engine-0", state=EngineState.DEAD, since=1.0, generation=2)
    restarts: list[tuple[str, int, str]] = []
    scales: list[int] = []
    status_store = StatusStore(Status(engines=(engine,)))
    desired = OrderBook(status_store, lambda *order: restarts.append(order), scales.append)
    with Background() as background:
        server = ControlServer(
            status_store, desired, lambda: ("text/plain; version=0.0.4", b"42"), TOKEN, until_it_changes
        )
        url = background.run(server.start(tmp_path), timeout_s=10)

        def close() -> None:
            background.run(server.close(), timeout_s=10)

        yield Driver(status_store, desired, server, url, tmp_path, restarts, scales, close)
        close()


def order(generation: int = 3) -> dict[str, Any]:
    return {"generation": generation, "desired": "Running", "reason": "it died"}


def test_the_status_is_written_in_camel_case(driver):
    code, status = driver.ask("GET", "/v1/status")
    assert (code, status["phaseSince"], status["engines"][0]["name"]) == (200, 0.0, "engine-0")


@pytest.mark.parametrize("token", ["", "Bearer wrong", TOKEN, "Bearer ünicode"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/status"), ("POST", "/v1/drain"), ("GET", "/v1/nowhere")])
def test_nobody_is_let_in_without_the_token(driver, method, path, token):
    code, refusal = driver.ask(method, path, token=token.encode().decode("latin-1"))
    assert (code, refusal["field"], refusal["value"]) == (401, "Authorization", "")
    assert not driver.desired.requested


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/status"), ("POST", "/v1/drain")])
def test_the_eviction_token_permits_nothing_but_to_report_an_eviction(driver, method, path):
    code, _ = driver.ask(method, path, token=f"Bearer {eviction_token(TOKEN)}")
    assert (code, driver.desired.requested) == (401, False)


@pytest.mark.parametrize("token", [TOKEN, eviction_token(TOKEN)])
def test_an_evicted_pod_of_the_learner_drains_the_driver_however_often_it_reports(driver, token):
    eviction = {"pod": "sums-trainer-0", "node": "10.0.0.7", "holds": "Learner"}
    answers = [driver.ask("POST", "/v1/evict", eviction, token=f"Bearer {token}") for _ in range(2)]
    assert answers == [(200, {"outcome": "Draining", "stalled": False})] * 2
    status = driver.status_store.status
    assert (status.state, status.eviction) == (RunState.DRAINING, "pod sums-trainer-0 is being evicted")


def test_an_eviction_that_cannot_be_read_is_refused(driver):
    code, refusal = driver.ask("POST", "/v1/evict", {"pod": "sums-trainer-0"})
    assert (code, refusal["field"], driver.desired.requested) == (400, "holds", False)


def test_a_server_without_a_token_does_not_start():
    status_store = StatusStore(Status())
    with pytest.raises(TokenError, match="RLJOB_TOKEN"):
        ControlServer(
            status_store, OrderBook(status_store, lambda *order: None, print), lambda: ("text/plain", b""), ""
        )


def test_a_long_poll_is_answered_by_the_next_change(driver):
    with ThreadPoolExecutor() as pool:
        poll = pool.submit(driver.ask, "GET", "/v1/status?since=0&wait=8")
        until(lambda: driver.server.attendance.absent_s == 0)
        driver.status_store.update(state=RunState.RUNNING)
        assert poll.result()[1]["state"] == "Running"


def test_a_long_poll_for_an_old_revision_is_answered_at_once(driver):
    driver.status_store.update(state=RunState.RUNNING)
    assert driver.ask("GET", "/v1/status?since=0&wait=8")[1]["revision"] == 1


def test_a_long_poll_for_the_revision_of_an_earlier_attempt_is_answered_at_once(driver):
    assert driver.ask("GET", "/v1/status?since=7&wait=8")[1]["revision"] == 0


@pytest.mark.parametrize(("asked_s", "waited_s"), [("1", 1.0), ("600", LONGEST_WAIT_S)])
def test_a_long_poll_without_a_change_is_answered_after_its_wait(driver, asked_s, waited_s):
    waits = []

    async def out_of_time(changed: asyncio.Event, timeout_s: float) -> None:
        waits.append(timeout_s)

    driver.server._wait = out_of_time
    assert driver.ask("GET", f"/v1/status?since=0&wait={asked_s}")[1]["revision"] == 0
    assert waits == [waited_s]


@pytest.mark.parametrize(("changes_after_s", "waited_s"), [(10.0, 10.0), (600.0, 30.0)])
def test_the_wait_for_a_change_ends_with_it_or_by_itself(changes_after_s, waited_s):
    async def waits() -> float:
        changed, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.call_later(changes_after_s, changed.set)
        await changed_within(changed, 30.0)
        return loop.time()

    assert virtual_time.run(waits()) == waited_s


def test_a_poll_whose_client_is_gone_is_no_attendance(driver):
    client = HTTPConnection(driver.url.removeprefix("http://"))
    client.request("GET", "/v1/status?since=0&wait=30", headers={"Authorization": f"Bearer {TOKEN}"})
    until(lambda: driver.server.attendance.absent_s == 0)
    client.close()
    until(lambda: driver.server.attendance.absent_s > 0)


@pytest.mark.parametrize("query", ["since=x", "since=-1", "since=1&wait=soon"])
def test_a_query_that_is_no_number_is_refused_with_its_name(driver, query):
    code, refusal = driver.ask("GET", f"/v1/status?{query}")
    assert (code, refusal["rule"]) == (400, "must be a whole number, 0 or more")


def test_an_order_is_carried_out_once_however_often_it_comes(driver):
    answers = [driver.ask("PUT", "/v1/engines/engine-0", order()) for _ in range(3)]
    assert [outcome["outcome"] for _, outcome in answers] == ["Accepted", "Unchanged", "Unchanged"]
    assert driver.restarts == [("engine-0", 3, "it died")]


def test_an_accepted_order_stands_in_the_status(driver):
    driver.ask("PUT", "/v1/engines/engine-0", order())
    (decision,) = driver.ask("GET", "/v1/status")[1]["decisions"]
    assert (decision["generation"], decision["by"], decision["reason"]) == (3, "Supervisor", "it died")


def test_an_order_for_the_present_generation_changes_nothing(driver):
    assert driver.ask("PUT", "/v1/engines/engine-0", order(2)) == (200, {"outcome": "Unchanged"})
    assert driver.restarts == []


def test_an_order_that_skips_a_generation_is_refused(driver):
    code, refusal = driver.ask("PUT", "/v1/engines/engine-0", order(5))
    assert (code, refusal) == (
        409,
        {"field": "generation", "value": "5", "rule": "must be at most 3, the generation after the present one"},
    )


def test_an_engine_that_works_is_not_replaced(driver):
    healthy = driver.status_store.status.engines[0].model_copy(update={"state": EngineState.HEALTHY})
    driver.status_store.update(engines=(healthy,))
    driver.ask("PUT", "/v1/engines/engine-0", order())
    assert driver.restarts == []


def test_an_unknown_engine_is_refused_with_the_known_names(driver):
    code, refusal = driver.ask("PUT", "/v1/engines/engine-7", order())
    assert (code, refusal) == (404, {"field": "name", "value": "engine-7", "rule": "must be one of engine-0"})


def test_an_order_of_a_newer_supervisor_is_taken_without_its_new_field(driver):
    code, result = driver.ask("PUT", "/v1/engines/engine-0", {**order(), "x": 1})
    assert (code, result["outcome"]) == (202, "Accepted")


@pytest.mark.parametrize(
    ("body", "field"),
    [({"generation": 3}, "desired"), ({**order(), "desired": "Gone"}, "desired")],
)
def test_a_bad_order_is_refused_with_its_field(driver, body, field):
    code, refusal = driver.ask("PUT", "/v1/engines/engine-0", body)
    assert (code, refusal["field"]) == (400, field)


def test_a_drain_asks_the_loop_to_end_and_shows_in_the_status(driver):
    answers = [driver.ask("POST", "/v1/drain") for _ in range(2)]
    assert answers == [(202, {"outcome": "Accepted"}), (200, {"outcome": "Unchanged"})]
    assert driver.desired.requested
    assert driver.status_store.status.state is RunState.DRAINING


def test_metrics_come_with_their_content_type(driver):
    assert driver.ask("GET", "/v1/metrics") == (200, 42)


@pytest.mark.parametrize(("method", "path", "code"), [("GET", "/v2/status", 404), ("POST", "/v1/status", 405)])
def test_an_unknown_path_or_method_is_refused_in_json(driver, method, path, code):
    found, refusal = driver.ask(method, path)
    assert (found, refusal["value"]) == (code, f"{method} {path}")


def test_the_address_is_written_for_its_owner_only(driver):
    address = driver.directory / "control.json"
    assert json.loads(address.read_text())["url"] == driver.url
    assert stat.S_IMODE(address.stat().st_mode) == 0o600


def test_the_address_is_removed_when_the_server_closes(tmp_path):
    status_store = StatusStore(Status())
    server = ControlServer(
        status_store, OrderBook(status_store, lambda *order: None, print), lambda: ("text/plain", b""), TOKEN
    )
    with Background() as background:
        background.run(server.start(tmp_path), timeout_s=10)
        background.run(server.close(), timeout_s=10)
    assert list(tmp_path.iterdir()) == []


def test_whoever_waits_for_a_change_is_answered_when_the_server_closes(driver):
    with ThreadPoolExecutor() as pool:
        poll = pool.submit(driver.ask, "GET", "/v1/status?since=0&wait=8")
        until(lambda: driver.server.attendance.absent_s == 0)
        driver.close()
        assert poll.result()[0] == 200


def test_an_order_of_more_engines_is_carried_out_once(driver):
    driver.status_store.update(state=RunState.RUNNING, scale=Scale(generation=0, engines=1))
    wanted = {"generation": 4, "engines": 3}
    answers = [driver.ask("PUT", "/v1/scale", wanted) for _ in range(3)]
    assert [code for code, _ in answers] == [202, 200, 200]
    assert [answer["outcome"] for _, answer in answers] == ["Accepted", "Unchanged", "Unchanged"]
    assert driver.scales == [3]
    assert driver.ask("GET", "/v1/status")[1]["scale"] == wanted


def test_a_newer_order_of_the_same_number_is_remembered_and_changes_nothing(driver):
    driver.status_store.update(state=RunState.RUNNING, scale=Scale(generation=4, engines=3))
    assert driver.ask("PUT", "/v1/scale", {"generation": 5, "engines": 3}) == (200, {"outcome": "Unchanged"})
    assert (driver.status_store.status.scale.generation, driver.scales) == (5, [])


@pytest.mark.parametrize("generation", [3, 4])
def test_an_older_order_is_refused(driver, generation):
    driver.status_store.update(state=RunState.RUNNING, scale=Scale(generation=4, engines=3))
    code, refusal = driver.ask("PUT", "/v1/scale", {"generation": generation, "engines": 2})
    assert (code, refusal["field"], refusal["value"]) == (409, "generation", str(generation))
    assert refusal["rule"] == "must be 5 or more: 4 has ordered 3 engines"
    assert driver.scales == []


@pytest.mark.parametrize(
    ("state", "rule"),
    [
        (RunState.STARTING, "cannot change yet: the engines start"),
        (RunState.RUNNING, "cannot change: colocated engines sit on the learner's GPUs"),
    ],
)
def test_engines_that_cannot_scale_say_why(driver, state, rule):
    driver.status_store.update(state=state)
    code, refusal = driver.ask("PUT", "/v1/scale", {"generation": 4, "engines": 2})
    assert (code, refusal) == (409, {"field": "engines", "value": "2", "rule": rule})


@pytest.mark.parametrize("engines", [0, -1, "many"])
def test_there_is_at_least_one_engine(driver, engines):
    driver.status_store.update(state=RunState.RUNNING, scale=Scale(generation=0, engines=1))
    code, refusal = driver.ask("PUT", "/v1/scale", {"generation": 4, "engines": engines})
    assert (code, refusal["field"], refusal["value"]) == (400, "engines", str(engines))


@pytest.mark.parametrize(
    ("token", "answer"), [(eviction_token(TOKEN), EvictionResult(outcome="Draining")), ("wrong", NoAnswer.REFUSED)]
)
def test_the_hook_of_a_pod_reaches_the_driver(driver, token, answer):
    assert post(driver.url + EVICT, token, Eviction(pod="p", holds="Learner")) == answer
