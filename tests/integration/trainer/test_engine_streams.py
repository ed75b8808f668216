"""A real engine's streams through a real router: the same tokens and log-probabilities as of a whole answer."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from openai import OpenAI

from rljob_trainer.engines.client import Continuation, EngineRefusedError, TokenRequest
from rljob_trainer.gateway.client import GatewayProcess
from rljob_trainer.gateway.record import Opening, Settings
from support.trainer.fleet import PROMPT, Fleet, start_ray
from support.waiting import until

TOKENS = 24
MOST = 900
"""tokens of an answer whose client goes away; the engine's context has 1024"""
GREEDY = TokenRequest(PROMPT, 1, 0.0, 1.0, -1, TOKENS)


@pytest.fixture(scope="module", params=[True, False], ids=["new tokens alone", "all tokens so far"])
def fleet(
    request: pytest.FixtureRequest, tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    start_ray()
    directory, arguments = tmp_path_factory.mktemp("fleet"), {"incremental-streaming-output": request.param}
    fleet = Fleet(tiny_llama_dir, directory, names=("engine-0",), arguments=arguments)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()
        ray.shutdown()


async def streamed(fleet: Fleet, asked: TokenRequest) -> list[Continuation]:
    assert fleet.router.client is not None
    return [part async for part in fleet.router.client.stream(asked, 60)]


def test_the_parts_of_a_stream_are_the_whole_answer(fleet: Fleet) -> None:
    assert fleet.router.client is not None
    (whole,) = fleet.run(fleet.router.client.generate(GREEDY, 60), 120)
    parts = fleet.run(streamed(fleet, GREEDY), 120)
    assert len(parts) > TOKENS // 2
    assert tuple(token for part in parts for token in part.tokens_T) == whole.tokens_T
    logprobs = [logprob for part in parts for logprob in part.logprobs_T]
    assert logprobs == pytest.approx(whole.logprobs_T, abs=1e-5)
    assert [part.finish_reason for part in parts] == [""] * (len(parts) - 1) + ["length"]
    assert {(part.version, part.engine) for part in parts} == {(0, "engine-0")}


def test_what_an_engine_refuses_is_refused(fleet: Fleet) -> None:
    with pytest.raises(EngineRefusedError):
        fleet.run(streamed(fleet, replace(GREEDY, temperature=-1.0)), 120)


@pytest.mark.parametrize("fleet", [True], indirect=True, ids=["new tokens alone"])
def test_a_client_that_hangs_up_leaves_a_turn_that_was_cut_off_and_goes_on_behind_it(
    fleet: Fleet, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    assert fleet.router.client is not None
    settings = Settings(str(tiny_llama_dir), 1024, 960, 4, 600.0, 60.0, 60.0)
    process = GatewayProcess(settings, tmp_path / "gateway.log", fleet.session, fleet.key)
    fleet.run(process.start(), 300)
    try:
        session = fleet.run(process.open_session(Opening(fleet.router.client.url, 0.0, 1.0, -1)), 60)
        asked: list[Any] = [{"role": "user", "content": "1 + 1 ="}]
        with OpenAI(base_url=session.base_url, api_key=session.key, max_retries=0) as client:
            stream = client.chat.completions.create(model="any", messages=asked, stream=True, max_tokens=MOST)
            first = next(text for chunk in stream if (text := chunk.choices[0].delta.content))
            stream.close()
            until(lambda: bool(fleet.run(process.record(session.name), 60).turns))
            (turn,) = fleet.run(process.record(session.name), 60).turns
            assert (turn.finish_reason, 0 < len(turn.tokens_T) < MOST) == ("abort", True)
            assert len(turn.logprobs_T) == len(turn.tokens_T)
            assert turn.text.startswith(first)
            more = [{"role": "assistant", "content": turn.text}, {"role": "user", "content": "And 2 + 2?"}]
            client.chat.completions.create(model="any", messages=asked + more, max_tokens=4)
        one, two = fleet.run(process.close_session(session.name), 60).turns
        assert (one, two.parent) == (turn, 0)
        assert two.cached >= len(one.given_T), "the engine had the prompt"
    finally:
        fleet.run(process.close(), 60)
