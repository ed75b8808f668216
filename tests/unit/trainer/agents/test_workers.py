"""Agents in real processes: many at once, and what one that fails costs the others."""

import asyncio

import pytest

from rljob_api.sections import Agent
from rljob_trainer.agents.outcome import Failed, Returned
from rljob_trainer.agents.workers import AgentWorkers, without_proxy
from rljob_trainer.conversations.errors import GenerateError

AGENTS = """
import asyncio
import os
import time

here = 0
both = asyncio.Event()


async def run(task, base_url, api_key):
    global here
    match task["question"]:
        case "reward":
            return 1
        case "text":
            return f"{base_url} {api_key}"
        case "nothing":
            return None
        case "list":
            return [1]
        case "raise":
            raise KeyError("tool")
        case "meet":
            here += 1
            if here == 2:
                both.set()
            await both.wait()
            return os.getpid()
        case "hang":
            await asyncio.Event().wait()
        case "block":
            time.sleep(1000)
        case "exit":
            os._exit(3)


def plain(task, base_url, api_key):
    pass


async def other(conversation):
    pass
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "own_agents.py").write_text(AGENTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def ends(place, *questions, **more):
    """Return how agents end that run at once."""

    async def all_of():
        workers = AgentWorkers(Agent(function="own_agents:run", **{"processes": 1, **more}), place / "agents.log")
        try:
            calls = [workers.call(({"question": each}, "http://url", "key")) for each in questions]
            return await asyncio.gather(*calls)
        finally:
            await workers.close()

    return asyncio.run(all_of())


def test_an_agent_returns_a_reward_a_text_or_nothing(place):
    assert ends(place, "reward", "text", "nothing") == [
        Returned(reward=1.0),
        Returned(text="http://url key"),
        Returned(),
    ]


def test_agents_run_at_once_in_one_process(place):
    one, two = ends(place, "meet", "meet")
    assert one == two


def test_what_an_agent_raises_or_returns_wrongly_is_its_end_alone(place):
    wrong, raised, good = ends(place, "list", "raise", "reward")
    assert (wrong, good) == (Failed("returned [1]; a finite number, a text or None is expected"), Returned(reward=1.0))
    assert raised == Failed("failed: KeyError: 'tool'")
    assert "KeyError" in (place / "agents.log").read_text()


def test_an_agent_that_waits_for_ever_ends_in_its_time_alone(place):
    hung, good = ends(place, "hang", "reward", timeout_seconds=1)
    assert hung.is_late
    assert "rollout.agent.timeoutSeconds" in hung.reason
    assert good == Returned(reward=1.0)


def test_a_process_that_ends_costs_its_agents_and_another_follows(place):
    async def one_after_the_other():
        workers = AgentWorkers(Agent(function="own_agents:run", processes=1), place / "agents.log")
        try:
            return [await workers.call(({"question": each}, "u", "k")) for each in ("exit", "reward")]
        finally:
            await workers.close()

    ended, good = asyncio.run(one_after_the_other())
    assert ended.reason.startswith("its process ended with code 3")
    assert good == Returned(reward=1.0)


def test_an_agent_that_blocks_its_process_is_killed_with_it(place):
    (blocked,) = ends(place, "block", timeout_seconds=1)
    assert blocked.is_late
    assert "time.sleep" in (place / "agents.log").read_text() or "own_agents.py" in (place / "agents.log").read_text()


def test_no_proxy_of_the_machine_is_asked_for_the_gateway():
    assert without_proxy({"NO_PROXY": "a.example", "HTTP_PROXY": "http://proxy"}) == {
        "NO_PROXY": "a.example,127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("own_agents:plain", "is no `async def` function"),
        ("own_agents:other", "an agent takes \\(task, base_url, api_key\\)"),
        ("own_agents:missing", "rollout.agent.function own_agents:missing: own_agents has no function missing"),
    ],
    ids=["plain", "parameters", "missing"],
)
def test_a_function_that_cannot_be_an_agent_is_refused_before_the_start(place, function, message):
    with pytest.raises(GenerateError, match=message):
        AgentWorkers(Agent(function=function), place / "agents.log").check(lambda: None)
