"""Gateways and agents that are killed, with real processes: no turn that an agent saw is lost, or there twice."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from rljob_api.sections import Agent, Branches, Sampling
from rljob_trainer.agents.generator import AgentGenerator
from rljob_trainer.agents.trajectory import Counting
from rljob_trainer.agents.workers import AgentWorkers
from rljob_trainer.gateway.client import GatewayProcess, Gateways, OpenSession
from rljob_trainer.gateway.record import Record, Settings
from rljob_trainer.processes.background import Background
from rljob_trainer.reporting.losses import Losses, Outage
from rljob_trainer.samples import Prompt, Sample
from support.trainer.killed_gateways import NumberingEngine, Plan, Point, at_event, at_token, drawn, logprobs
from support.trainer.tiny_models import tiny_tokenizer
from support.waiting import until

TURNS = 5
AGENT = """
'''Asks TURNS times in the way that its row says, and notes each answer that it sees.'''

import json, os
from pathlib import Path

import anthropic, httpx, openai

PLACE = Path(PLACE_)


async def chat(client, messages):
    answer = await client.chat.completions.create(model="any", messages=messages)
    return answer.choices[0].message.content


async def streamed(client, messages):
    while True:
        text = ""
        try:
            async for chunk in await client.chat.completions.create(model="any", messages=messages, stream=True):
                text += chunk.choices[0].delta.content or ""
                if chunk.choices[0].finish_reason:
                    return text
        except (httpx.HTTPError, openai.APIError):
            pass  # asked again: SDKs repeat no stream that has begun


async def messages_api(base_url, api_key, messages):
    url = base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=url, api_key=api_key, max_retries=20) as client:
        said = await client.messages.create(model="any", messages=messages, max_tokens=99)
        return said.content[0].text


async def run(task, base_url, api_key):
    kind, log = task["question"], PLACE / f"seen-{base_url.split('/')[-2]}"
    with log.open("a") as file:
        file.write(f"{os.getpid()}\\n")
    seen, messages, previous = [], [], None
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=20) as client:
        for turn in range(TURNS_):
            asked = {"role": "user", "content": f"{kind} {turn}?"}
            if kind == "responses":
                said = await client.responses.create(model="any", input=[asked], previous_response_id=previous)
                previous, text = said.id, said.output_text
            else:
                messages.append(asked)
                if kind == "messages":
                    text = await messages_api(base_url, api_key, messages)
                else:
                    text = await (streamed if kind == "streamed" else chat)(client, messages)
                messages.append({"role": "assistant", "content": text})
            seen.append(text)
            with log.open("a") as file:
                file.write(json.dumps(text) + "\\n")
    return 1.0
"""
KINDS = ("chat", "streamed", "responses", "messages")


class Noted(Gateways):
    """Gateways whose records are kept."""

    def __init__(self, processes: tuple[GatewayProcess, ...]) -> None:
        super().__init__(processes)
        self.records: dict[str, Record] = {}

    async def close_session(self, session: OpenSession) -> Record:
        record = self.records[session.name] = await super().close_session(session)
        return record


class Scene:
    """An engine, a gateway and a process of agents."""

    def __init__(self, place: Path, background: Background, points: Sequence[Point]) -> None:
        self.place, self.background, self.losses = place, background, Losses()
        self.plan = Plan(place)
        self.plan.write(points)
        self.engine = NumberingEngine(tiny_tokenizer(place / "model"), self.plan)
        self.session = background.run(self._session(), 60)
        settings = Settings(str(place / "model"), 1024, 1000, TURNS, 600.0, 60.0, 60.0)
        self.process = GatewayProcess(settings, place / "gateway.log", self.session, "")
        self.gateways = Noted((self.process,))
        router = background.run(self.engine.serve(), 60)
        background.run(self.gateways.start(), 120)
        self.kept = background.submit(self.gateways.keep())
        self.workers = AgentWorkers(Agent(function="killed_agent:run", processes=1), place / "agents.log")
        self.generator = AgentGenerator(
            name=self.workers.name,
            runs=self.workers,
            sessions=self.gateways,
            router=router,
            counting=Counting(Branches.ALL, drop_outgrown=False, judged=False),
            concurrency=64,
            outage=Outage("the agent", self.losses, has_worked=True),
            losses=self.losses,
        )

    @staticmethod
    async def _session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    async def samples(self, kinds: Sequence[str] = KINDS) -> list[Sample]:
        """Return those of one prompt of each kind."""
        prompts = [Prompt(str(row), kind, "", (), "", {}) for row, kind in enumerate(kinds)]
        made = await asyncio.gather(
            *(self.generator.generate(each, Sampling(max_new_tokens=1000), 1, False) for each in prompts)
        )
        return [sample for each in made for sample in each]

    def seen(self, name: str) -> list[str]:
        """Return the answers that the agent of a session has seen, in order."""
        _, *lines = (self.place / f"seen-{name}").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self.kept.cancel()
        self.background.run(self.workers.close(), 60)
        self.background.run(self.gateways.stop(), 60)
        self.background.run(self.engine.stop(), 60)
        self.background.run(self.session.close(), 60)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    (tmp_path / "killed_agent.py").write_text(
        AGENT.replace("PLACE_", repr(str(tmp_path))).replace("TURNS_", str(TURNS))
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Background() as background:
        scenes: list[Scene] = []

        def begun(points: Sequence[Point]) -> Scene:
            scenes.append(Scene(tmp_path, background, points))
            return scenes[-1]

        yield begun
        for each in scenes:
            each.close()


def number_of(text: str) -> int:
    return int(text.removeprefix("It is ").removesuffix("."))


BEFORE_COMMIT, BEFORE_IT_LEAVES, BEFORE_IT_IS_NOTED = at_event(3), at_event(4), at_event(2)
"""of one session: it is opened, asked, answered, ended, left; then the one before is ended, and what waits has left"""


@pytest.mark.parametrize(
    ("kinds", "points"),
    [
        (["chat"], [BEFORE_COMMIT, BEFORE_IT_LEAVES, BEFORE_IT_IS_NOTED]),
        (["streamed"], [at_token(1, 0), BEFORE_IT_LEAVES, BEFORE_IT_IS_NOTED, at_token(2, 2)]),
        pytest.param(KINDS, drawn(30, seed=2), marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
    ids=["chat", "streamed", "30 points"],
)
def test_sessions_have_the_turns_that_their_agents_saw_each_once(play, kinds, points) -> None:
    scene = play(points)
    samples: list[Sample] = []
    while scene.plan.left or scene.plan.current["by"] != "nobody":
        samples += scene.background.run(scene.samples(kinds), 600)

    records = scene.gateways.records
    assert len(records) == len(samples) >= len(kinds), "no trajectory began again"
    for name, record in records.items():
        assert [turn.text for turn in record.turns] == scene.seen(name)
        assert [turn.parent for turn in record.turns] == [None, *range(TURNS - 1)]
    numbers = [number_of(turn.text) for record in records.values() for turn in record.turns]
    assert len(set(numbers)) == len(numbers) == TURNS * len(samples)
    for sample, record in zip(samples, by_sample(samples, records), strict=True):
        said = [(number, scene.engine.tokens(number)) for number in (number_of(turn.text) for turn in record.turns)]
        assert sample.own_tokens == tuple(token for _, tokens in said for token in tokens)
        assert sample.own_logprobs == tuple(each for number, tokens in said for each in logprobs(number, tokens))
    lost = scene.losses.lost()
    assert (lost.agent_restarts, lost.lost_samples) == (0, 0)
    assert lost.agent_cut_offs == sum(record.cut_off for record in records.values())
    assert lost.agent_cut_offs >= scene.engine.kills == sum(point["by"] == "engine" for point in points)
    assert not list(scene.place.glob("rljob-sessions-*/*"))


def test_a_gateway_that_comes_back_while_weights_are_published_asks_for_no_tokens(play) -> None:
    scene = play([])
    made = scene.background.submit(scene.samples(["chat"]))
    until(lambda: any(scene.place.glob("rljob-sessions-*/*")))  # the agent's process starts for seconds
    scene.background.run(scene.gateways.close(), 60)
    scene.background.run(scene.gateways.emptied(), 60)
    (file,) = scene.place.glob("rljob-sessions-*/*")
    until(lambda: requests(file) == 1)  # it waits at the gate
    os.kill(scene.process.pid, signal.SIGKILL)
    until(lambda: requests(file) == 2)  # it waits at the gate of the next one
    assert scene.background.run(scene.gateways.emptied(0.0), 60)
    assert scene.engine.answers == 0
    scene.background.run(scene.gateways.open(), 60)
    (sample,) = made.result(120)
    assert sample.reward == 1.0
    assert scene.losses.lost().agent_cut_offs == 1


def requests(file: Path) -> int:
    """Return how many have come to a session."""
    return sum(line.startswith(b'{"asked"') for line in file.read_bytes().splitlines())


def by_sample(samples: list[Sample], records: dict[str, Record]) -> Iterator[Record]:
    """Yield the record of each sample: the first of its tokens are of this session alone."""
    by_logprob = {record.turns[0].logprobs_T[0]: record for record in records.values()}
    return (by_logprob[sample.own_logprobs[0]] for sample in samples)


def test_an_agent_whose_process_is_killed_begins_again_and_is_counted(play) -> None:
    scene = play([])
    made = scene.background.submit(scene.samples())
    until(lambda: scene.engine.answers > 2)
    seen = next(iter(scene.place.glob("seen-*")))
    os.kill(int(seen.read_text().splitlines()[0]), signal.SIGKILL)
    samples = made.result(300)
    lost = scene.losses.lost()
    assert len(samples) == len(KINDS)
    assert (lost.agent_restarts, lost.lost_samples) == (len(scene.gateways.records) - len(KINDS), 0)
    assert lost.agent_restarts >= 1
    trained = [each.own_logprobs[0] for each in samples]
    assert len(set(trained)) == len(KINDS)
    for record in by_sample(samples, scene.gateways.records):
        assert len(record.turns) == TURNS
