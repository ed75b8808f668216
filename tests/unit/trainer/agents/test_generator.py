"""What becomes of the trajectories of agents that fail."""

import asyncio
from dataclasses import replace
from itertools import cycle

import pytest

from rljob_api.sections import Branches, Sampling
from rljob_trainer.agents.generator import AgentGenerator
from rljob_trainer.agents.outcome import Failed, Returned
from rljob_trainer.agents.trajectory import Counting
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.gateway.client import GatewayError, OpenSession
from rljob_trainer.gateway.record import Record
from rljob_trainer.gateway.tree import Turn
from rljob_trainer.generator import RolloutTimeoutError
from rljob_trainer.reporting.losses import Losses, Outage
from rljob_trainer.samples import Prompt

PROMPT = Prompt("0:7", "1 + 1 =", "row", (1, 2), "2", {"level": 3})
ROW = {"question": "1 + 1 =", "label": "2", "metadata": {"level": 3}}
SAMPLING = Sampling(temperature=0.7, max_new_tokens=64, stop=("\n\n",))
GOOD = Record((Turn(0, None, (1,), "", (2,), (-0.5,), "2", "2", 0, "engine-0", "stop"),))


class Gateway:
    url = "http://gateway"


class Scripted:
    """Agents that end as a script says, each with the record of its session; an error of the record is raised."""

    def __init__(self, *ends):
        self.ends, self.asked, self.opened, self.closed = list(ends), [], [], []
        self.at_once = self.most_at_once = 0
        self._records = {}

    async def call(self, arguments):
        self.asked.append(arguments)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.to_thread(int)  # others go on meanwhile
        self.at_once -= 1
        ended, self._records[arguments[2]] = self.ends.pop(0)
        return ended

    async def open_session(self, opening):
        self.opened.append(opening)
        return OpenSession(Gateway(), f"s{len(self.opened)}", f"key-{len(self.opened)}")

    async def close_session(self, session):
        self.closed.append(session.name)
        record = self._records.get(session.key, Record())
        if isinstance(record, Exception):
            raise record
        return record


def made(scripted, num_samples=1, greedy=False, concurrency=8, has_worked=True, losses=None):
    async def no_pause(seconds):
        pass

    losses = losses or Losses()
    generator = AgentGenerator(
        name="rollout.agent.function own:run",
        runs=scripted,
        sessions=scripted,
        router="http://router",
        counting=Counting(Branches.ALL, drop_outgrown=False, judged=True),
        concurrency=concurrency,
        outage=None if has_worked is None else Outage("the agent", losses, has_worked=has_worked),
        losses=losses,
        pause=no_pause,
    )
    return asyncio.run(generator.generate(PROMPT, SAMPLING, num_samples, greedy))


def test_an_agent_gets_its_row_and_a_session_of_its_own():
    scripted = Scripted((Returned(reward=1.0), GOOD), (Returned(), GOOD))
    samples = made(scripted, num_samples=2)
    assert [sample.reward for sample in samples] == [1.0, None]
    assert scripted.asked == [(ROW, f"http://gateway/sessions/s{n}/v1", f"key-{n}") for n in (1, 2)]
    assert scripted.closed == ["s1", "s2"]


@pytest.mark.parametrize(("greedy", "drawn"), [(False, (0.7, 1.0, -1)), (True, (0.0, 1.0, -1))])
def test_a_session_draws_as_the_manifest_says_and_greedily_in_evaluations(greedy, drawn):
    scripted = Scripted((Returned(), GOOD))
    made(scripted, greedy=greedy)
    (opened,) = scripted.opened
    assert (opened.temperature, opened.top_p, opened.top_k) == drawn
    assert opened.stop == ("\n\n",)


def test_no_more_agents_run_at_once_than_the_manifest_allows():
    scripted = Scripted(*[(Returned(), GOOD)] * 6)
    made(scripted, num_samples=6, concurrency=2)
    assert scripted.most_at_once == 2


@pytest.mark.parametrize(
    "bad",
    [
        (Failed("failed: KeyError"), GOOD),
        (Failed("late", is_late=True), GOOD),
        (Failed("its process was killed"), GatewayError("404")),
    ],
    ids=["raises", "hangs", "gateway ends"],
)
def test_a_trajectory_that_fails_is_started_again_in_a_new_session(bad):
    losses = Losses()
    scripted = Scripted(bad, (Returned(reward=1.0), GOOD))
    (sample,) = made(scripted, losses=losses)
    assert sample.reward == 1.0
    assert scripted.closed == ["s1", "s2"]
    lost = losses.lost()
    assert (lost.agent_restarts, lost.lost_samples) == (1, 0)


def test_requests_that_the_end_of_a_gateway_has_cut_off_are_counted():
    losses = Losses()
    bad, good = replace(GOOD, cut_off=2), replace(GOOD, cut_off=1)
    made(Scripted((Failed("failed: APIConnectionError"), bad), (Returned(), good)), losses=losses)
    lost = losses.lost()
    assert (lost.agent_cut_offs, lost.agent_restarts, lost.lost_samples) == (3, 1, 0)
    assert losses.lost().agent_cut_offs == 0


@pytest.mark.parametrize(("is_late", "cause"), [(False, "Agent"), (True, "AgentTimeout")])
def test_one_that_fails_beside_others_is_lost_and_counted_by_its_cause(is_late, cause):
    losses = Losses()
    bad, good = (Failed("failed: KeyError", is_late), GOOD), (Returned(), GOOD)
    ends = cycle([bad, good])

    class Alternating(Scripted):
        async def call(self, arguments):
            self.ends.append(next(ends))
            return await super().call(arguments)

    samples = made(Alternating(), num_samples=5, concurrency=1, losses=losses)
    lost = losses.lost()
    assert len(samples) + lost.lost_samples == 5
    assert lost.losses == {cause: lost.lost_samples}
    assert lost.lost_samples >= 1
    assert str(losses.last) == "rollout.agent.function own:run: prompt 0:7: failed: KeyError"


def test_engines_that_are_away_are_no_fault_of_the_agent():
    with pytest.raises(RolloutTimeoutError, match="no engine"):
        made(Scripted((Failed("failed: 503"), Record(away="no engine has answered"))))


def test_where_nothing_may_be_lost_the_first_failure_is_the_result():
    with pytest.raises(GenerateError, match=r"own:run: prompt 0:7: failed: KeyError"):
        made(Scripted((Failed("failed: KeyError"), GOOD)), has_worked=None)
