"""Traces of agents as a collector gets them, over HTTP, and what a run does where there is none."""

import asyncio
import os
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rljob_api.sections import Branches, Sampling
from rljob_trainer.agents.generator import AgentGenerator
from rljob_trainer.agents.outcome import Failed, Returned
from rljob_trainer.agents.traces import ENDPOINTS, traces
from rljob_trainer.agents.trajectory import Counting
from rljob_trainer.gateway.client import OpenSession
from rljob_trainer.gateway.record import Record
from rljob_trainer.gateway.tree import Turn
from rljob_trainer.processes.ports import free_ports
from rljob_trainer.reporting.losses import Losses, Outage
from rljob_trainer.samples import Prompt
from support.http_in_thread import served_in_thread

PROMPT = Prompt("0:7", "secret question", "row", (1, 2), "2", {})
TURN = Turn(0, None, (1,), "secret", (2, 3), (-0.5, -0.5), "secret", "secret", 4, "engine-0", "stop")
CALLING = replace(TURN, calls=("look", "x" * 100), began=1000.5, seconds=0.25)
LAST = replace(TURN, number=1, parent=0, began=1002.0, seconds=1.0, engine="engine-1", finish_reason="length")
RECORD = Record((CALLING, LAST))


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ExportTraceServiceRequest]]:
    """Return what is sent to a collector, which the variables name."""
    sent: list[ExportTraceServiceRequest] = []

    async def take(request: web.Request) -> web.Response:
        sent.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response()

    application = web.Application()
    application.router.add_post("/v1/traces", take)
    with served_in_thread(application) as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("NO_PROXY", "*")
        yield sent


def spans(sent):
    return [span for request in sent for each in request.resource_spans for of in each.scope_spans for span in of.spans]


def attributes(span):
    """Return the attributes as values."""
    found = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


class Scripted:
    """Agents that end as a script says, all in the same session."""

    def __init__(self, *ends):
        self._ends = list(ends)

    async def call(self, arguments):
        return self._ends.pop(0)

    async def open_session(self, opening):
        return OpenSession(type("Gateway", (), {"url": "http://gateway"})(), "s", "key")

    async def close_session(self, session):
        return RECORD


def traced(made, *ends):
    """Let trajectories end like this; its clock is at 1000 s when each begins, and then at 1004 s."""
    times = iter([1000.0, 1004.0] * len(ends))

    async def at_once(seconds):
        pass

    scripted, losses = Scripted(*ends), Losses()
    generator = AgentGenerator(
        name="agent",
        runs=scripted,
        sessions=scripted,
        router="http://router",
        counting=Counting(Branches.ALL, drop_outgrown=False, judged=True),
        concurrency=1,
        outage=Outage("the agent", losses, has_worked=True),
        losses=losses,
        pause=at_once,
        traces=made,
        unix_time=lambda: next(times),
    )
    return asyncio.run(generator.generate(PROMPT, Sampling(max_new_tokens=8), 1, greedy=False))


def service(sent):
    resource = sent[0].resource_spans[0].resource
    return next(each.value.string_value for each in resource.attributes if each.key == "service.name")


def test_a_trajectory_is_a_span_with_one_for_each_answer(collector):
    made = traces(os.environ)
    assert made is not None
    traced(made, Returned(reward=0.5))
    made.close()
    root = next(span for span in spans(collector) if span.name == "invoke_agent")
    chats = [span for span in spans(collector) if span.name == "chat"]
    assert len(spans(collector)) == 3
    assert {span.trace_id for span in chats} == {root.trace_id}
    assert {span.parent_span_id for span in chats} == {root.span_id}
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (1000 * 10**9, 1004 * 10**9)
    assert [(span.start_time_unix_nano, span.end_time_unix_nano) for span in chats] == [
        (1_000_500_000_000, 1_000_750_000_000),
        (1_002_000_000_000, 1_003_000_000_000),
    ]
    assert attributes(root) == {
        "gen_ai.operation.name": "invoke_agent",
        "rl.prompt.uid": "0:7",
        "rl.reward": 0.5,
        "rl.answers": 2,
        "rl.branches": 1,
        "rl.tokens": 5,
        "rl.tokens.trained": 4,
        "rl.weights.version": 4,
        "rl.finish_reason": "length",
    }
    assert attributes(chats[0]) == {
        "rl.calls": ["look", "x" * 64],
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.response.finish_reasons": ["stop"],
        "rl.engine": "engine-0",
    }
    assert not any(b"secret" in request.SerializeToString() for request in collector), "no text leaves"
    assert service(collector) == "rljob"


def test_a_trajectory_that_fails_is_a_span_with_its_error_and_the_next_try_another(collector):
    made = traces(os.environ)
    traced(made, Failed("raised KeyError: 'x'"), Returned(reward=0.0))
    made.close()
    failed, good = sorted(
        (span for span in spans(collector) if span.name == "invoke_agent"), key=lambda e: -e.status.code
    )
    assert (failed.status.code, good.status.code) == (2, 0)
    assert "raised KeyError: 'x'" in failed.status.message
    assert attributes(failed) == {
        "gen_ai.operation.name": "invoke_agent",
        "rl.prompt.uid": "0:7",
        "error.type": "GenerateError",
    }
    assert failed.trace_id != good.trace_id


def test_all_spans_of_a_step_whose_agents_end_at_once_are_sent(collector):
    made = traces(os.environ)
    sample = traced(None, Returned(reward=0.5))[0]
    for _ in range(2000):
        made.made(PROMPT, sample, 1000.0, 1004.0)
    made.close(60.0)
    assert len(spans(collector)) == 6000


@pytest.mark.parametrize("variable", ["OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"])
def test_the_name_of_the_service_may_be_another(collector, monkeypatch, variable):
    monkeypatch.setenv(variable, "mine" if variable == "OTEL_SERVICE_NAME" else "service.name=mine")
    made = traces(os.environ)
    traced(made, Returned(reward=0.5))
    made.close()
    assert service(collector) == "mine"


@pytest.mark.parametrize(
    "environ", [{}, {ENDPOINTS[0]: ""}, {ENDPOINTS[1]: "http://collector:4318", "OTEL_SDK_DISABLED": "true"}]
)
def test_there_are_no_traces_without_a_collector(environ):
    assert traces(environ) is None


def test_a_collector_that_is_not_there_fails_no_trajectory(monkeypatch):
    port, _ = free_ports("127.0.0.1")
    monkeypatch.setenv(ENDPOINTS[1], f"http://127.0.0.1:{port}")
    monkeypatch.setenv("NO_PROXY", "*")
    made = traces(os.environ)
    (sample,) = traced(made, Returned(reward=0.5))
    assert sample.reward == 0.5
    made.close(0.1)


@pytest.mark.timeout(60)
def test_a_collector_that_does_not_answer_holds_no_end_of_a_run_up(monkeypatch):
    asked, answers = threading.Event(), threading.Event()

    async def hang(request: web.Request) -> web.Response:
        asked.set()
        await asyncio.to_thread(answers.wait)
        return web.Response()

    application = web.Application()
    application.router.add_post("/v1/traces", hang)
    with served_in_thread(application) as url:
        monkeypatch.setenv(ENDPOINTS[0], f"{url}/v1/traces")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
        monkeypatch.setenv("NO_PROXY", "*")
        made = traces(os.environ)
        traced(made, Returned(reward=0.5))
        closing = threading.Thread(target=made.close, args=(0.1,))
        closing.start()
        assert asked.wait(30)
        closing.join(20)
        assert not closing.is_alive()
        answers.set()
