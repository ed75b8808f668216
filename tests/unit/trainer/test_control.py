"""The control protocol over a real socket: who is let in, what is answered, and what an order changes."""

import json
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rljob_api.control import EngineState, EngineStatus, RunState, Scale, Status
from rljob_trainer.background import Background
from rljob_trainer.board import StatusBoard
from rljob_trainer.control import ControlServer, TokenError
from rljob_trainer.desired import Desired

TOKEN = "a-secret"


@dataclass
class Driver:
    """A control server with what is behind it, and what it carried out."""

    board: StatusBoard
    desired: Desired
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
            with opener.open(request, timeout=10) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    engine = EngineStatus(name="engine-0", state=EngineState.DEAD, since=1.0, generation=2)
    restarts: list[tuple[str, int, str]] = []
    scales: list[int] = []
    board = StatusBoard(Status(engines=(engine,)))
    desired = Desired(board, lambda *order: restarts.append(order), scales.append)
    with Background() as background:
        server = ControlServer(board, desired, lambda: ("text/plain; version=0.0.4", b"42"), TOKEN)
        url = background.run(server.start(tmp_path), timeout_s=10)

        def close() -> None:
            background.run(server.close(), timeout_s=10)

        yield Driver(board, desired, server, url, tmp_path, restarts, scales, close)
        close()


def order(generation: int = 3, desired: str = "Running") -> dict[str, Any]:
    return {"generation": generation, "desired": desired, "reason": "it died"}


def test_the_status_is_told_in_camel_case(driver):
    code, status = driver.ask("GET", "/v1/status")
    assert (code, status["phaseSince"], status["engines"][0]["name"]) == (200, 0.0, "engine-0")


@pytest.mark.parametrize("token", ["", "Bearer wrong", TOKEN, "Bearer ünicode"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/status"), ("POST", "/v1/drain"), ("GET", "/v1/nowhere")])
def test_nobody_is_let_in_without_the_token(driver, method, path, token):
    code, refusal = driver.ask(method, path, token=token.encode().decode("latin-1"))
    assert (code, refusal["field"], refusal["value"]) == (401, "Authorization", "")
    assert not driver.desired.requested


def test_a_server_without_a_token_does_not_start():
    board = StatusBoard(Status())
    with pytest.raises(TokenError, match="RLJOB_TOKEN"):
        ControlServer(board, Desired(board, lambda *order: None, print), lambda: ("text/plain", b""), "")


def test_a_long_poll_is_answered_by_the_next_change(driver):
    with ThreadPoolExecutor() as pool:
        poll = pool.submit(driver.ask, "GET", "/v1/status?since=0&wait=8")
        wait_until(lambda: driver.server.attendance.absent_s == 0)
        driver.board.update(state=RunState.RUNNING)
        assert poll.result(timeout=5)[1]["state"] == "Running"


def test_a_long_poll_for_an_old_revision_is_answered_at_once(driver):
    driver.board.update(state=RunState.RUNNING)
    assert driver.ask("GET", "/v1/status?since=0&wait=8")[1]["revision"] == 1


def test_a_long_poll_for_the_revision_of_an_earlier_attempt_is_answered_at_once(driver):
    assert driver.ask("GET", "/v1/status?since=7&wait=8")[1]["revision"] == 0


def test_a_long_poll_without_a_change_is_answered_after_its_wait(driver):
    began = time.monotonic()
    assert driver.ask("GET", "/v1/status?since=0&wait=1")[1]["revision"] == 0
    assert 1.0 <= time.monotonic() - began < 5.0


def test_a_poll_whose_client_is_gone_is_no_attendance(driver):
    request = urllib.request.Request(
        driver.url + "/v1/status?since=0&wait=30", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    with pytest.raises(TimeoutError):
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=0.3)
    wait_until(lambda: driver.server.attendance.absent_s > 0)


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
    assert (decision["generation"], decision["by"], decision["reason"]) == (3, "supervisor", "it died")


def test_an_order_for_the_present_generation_changes_nothing(driver):
    assert driver.ask("PUT", "/v1/engines/engine-0", order(2)) == (200, {"outcome": "Unchanged"})
    assert driver.restarts == []


def test_an_order_that_skips_a_generation_is_refused(driver):
    code, refusal = driver.ask("PUT", "/v1/engines/engine-0", order(5))
    assert (code, refusal) == (
        409,
        {"field": "generation", "value": "5", "rule": "must be at most 3, the generation after the present one"},
    )


@pytest.mark.parametrize(("desired", "restarts"), [("Running", []), ("Restarted", [("engine-0", 3, "it died")])])
def test_an_engine_that_works_is_replaced_only_if_a_restart_is_asked_for(driver, desired, restarts):
    healthy = driver.board.status.engines[0].model_copy(update={"state": EngineState.HEALTHY})
    driver.board.update(engines=(healthy,))
    driver.ask("PUT", "/v1/engines/engine-0", order(desired=desired))
    assert driver.restarts == restarts


def test_an_unknown_engine_is_refused_with_the_known_names(driver):
    code, refusal = driver.ask("PUT", "/v1/engines/engine-7", order())
    assert (code, refusal) == (404, {"field": "name", "value": "engine-7", "rule": "must be one of engine-0"})


@pytest.mark.parametrize(
    ("body", "field"),
    [({"generation": 3}, "desired"), ({**order(), "desired": "Gone"}, "desired"), ({**order(), "x": 1}, "x")],
)
def test_a_bad_order_is_refused_with_its_field(driver, body, field):
    code, refusal = driver.ask("PUT", "/v1/engines/engine-0", body)
    assert (code, refusal["field"]) == (400, field)


def test_a_drain_asks_the_loop_to_end_and_shows_in_the_status(driver):
    answers = [driver.ask("POST", "/v1/drain") for _ in range(2)]
    assert answers == [(202, {"outcome": "Accepted"}), (200, {"outcome": "Unchanged"})]
    assert driver.desired.requested
    assert driver.board.status.state is RunState.DRAINING


def test_a_checkpoint_is_wanted_once(driver):
    driver.ask("POST", "/v1/checkpoint")
    assert [driver.desired.take_checkpoint(), driver.desired.take_checkpoint()] == [True, False]


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
    board = StatusBoard(Status())
    server = ControlServer(board, Desired(board, lambda *order: None, print), lambda: ("text/plain", b""), TOKEN)
    with Background() as background:
        background.run(server.start(tmp_path), timeout_s=10)
        background.run(server.close(), timeout_s=10)
    assert list(tmp_path.iterdir()) == []


def test_whoever_waits_for_a_change_is_answered_when_the_server_closes(driver):
    with ThreadPoolExecutor() as pool:
        poll = pool.submit(driver.ask, "GET", "/v1/status?since=0&wait=8")
        wait_until(lambda: driver.server.attendance.absent_s == 0)
        driver.close()
        assert poll.result(timeout=0.5)[0] == 200


def wait_until(is_so, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def test_an_order_of_more_engines_is_carried_out_once(driver):
    driver.board.update(state=RunState.RUNNING, scale=Scale(generation=0, engines=1))
    wanted = {"generation": 4, "engines": 3}
    answers = [driver.ask("PUT", "/v1/scale", wanted) for _ in range(3)]
    assert [code for code, _ in answers] == [202, 200, 200]
    assert [answer["outcome"] for _, answer in answers] == ["Accepted", "Unchanged", "Unchanged"]
    assert driver.scales == [3]
    assert driver.ask("GET", "/v1/status")[1]["scale"] == wanted


def test_a_newer_order_of_the_same_number_is_remembered_and_changes_nothing(driver):
    driver.board.update(state=RunState.RUNNING, scale=Scale(generation=4, engines=3))
    assert driver.ask("PUT", "/v1/scale", {"generation": 5, "engines": 3}) == (200, {"outcome": "Unchanged"})
    assert (driver.board.status.scale.generation, driver.scales) == (5, [])


@pytest.mark.parametrize("generation", [3, 4])
def test_an_older_order_is_refused(driver, generation):
    driver.board.update(state=RunState.RUNNING, scale=Scale(generation=4, engines=3))
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
    driver.board.update(state=state)
    code, refusal = driver.ask("PUT", "/v1/scale", {"generation": 4, "engines": 2})
    assert (code, refusal) == (409, {"field": "engines", "value": "2", "rule": rule})


@pytest.mark.parametrize("engines", [0, -1, "many"])
def test_there_is_at_least_one_engine(driver, engines):
    driver.board.update(state=RunState.RUNNING, scale=Scale(generation=0, engines=1))
    code, refusal = driver.ask("PUT", "/v1/scale", {"generation": 4, "engines": engines})
    assert (code, refusal["field"], refusal["value"]) == (400, "engines", str(engines))
