"""A real engine's streams through a real router: the same tokens and log-probabilities as of a whole answer."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from rljob_trainer.engines.client import Continuation, EngineRefusedError, TokenRequest
from support.trainer.fleet import PROMPT, Fleet, start_ray

TOKENS = 24
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
