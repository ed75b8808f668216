import asyncio
from dataclasses import dataclass
from typing import Any, cast

import pytest

from rljob_api.sections import Sampling
from rljob_trainer.engines.client import (
    UNLABELLED,
    EngineRefusedError,
    EngineUnreachableError,
    TokenRequest,
    continuations,
)
from rljob_trainer.engines.generation import RouterGenerator, token_request
from rljob_trainer.generator import GenerationFailedError
from rljob_trainer.samples import Prompt, Sample

PROMPT = Prompt("0:1", "1 + 1", "1 + 1 =", (5, 6), "2", {})
SAMPLING = Sampling(temperature=0.7, top_p=0.9, max_new_tokens=5, stop=("\n",), stop_token_ids=(2,))


def answer(finish: dict[str, Any] | None, version: str = "4@engine-1") -> dict[str, Any]:
    logprobs = [[-0.5, 11, None], [-1.5, 12, None]]
    meta = {"output_token_logprobs": logprobs, "weight_version": version, "finish_reason": finish}
    return {"text": " 2", "output_ids": [11, 12], "meta_info": meta}


@dataclass
class FakeRouter:
    content: Any

    async def generate(self, request: TokenRequest, deadline_s: float) -> Any:
        if isinstance(self.content, Exception):
            raise self.content
        return continuations(self.content, "router")


def generate(content: Any, num_samples: int = 1) -> tuple[Sample, ...]:
    generator = RouterGenerator(cast(Any, FakeRouter(content)), 1.0)
    return asyncio.run(generator.generate(PROMPT, SAMPLING, num_samples, greedy=False))


def test_a_sample_has_the_tokens_their_logprobs_the_version_and_the_engine() -> None:
    assert generate(answer({"type": "stop"})) == (Sample((11, 12), (-0.5, -1.5), " 2", 4, "stop", "engine-1"),)


def test_all_samples_of_a_prompt_come_in_one_answer() -> None:
    assert len(generate([answer({"type": "length"})] * 3, num_samples=3)) == 3


def test_a_response_that_was_cut_off_is_asked_for_again() -> None:
    with pytest.raises(GenerationFailedError, match="0:1: aborted by engine engine-1"):
        generate([answer({"type": "stop"}), answer({"type": "abort"})], num_samples=2)


def test_a_lost_engine_is_worth_another_try_but_a_wrong_request_is_not() -> None:
    with pytest.raises(GenerationFailedError):
        generate(EngineUnreachableError("router: POST /generate: no answer"))
    with pytest.raises(EngineRefusedError):
        generate(EngineRefusedError("router: POST /generate: 400 too long"))


def test_an_engine_without_published_weights_makes_samples_of_no_version() -> None:
    (sample,) = generate(answer({"type": "stop"}, version="default"))
    assert (sample.version, sample.engine) == (UNLABELLED, "router")


def test_sampling_is_asked_for_as_the_manifest_says() -> None:
    assert token_request(PROMPT, SAMPLING, 8, greedy=False).body() == {
        "input_ids": [5, 6],
        "return_logprob": True,
        "sampling_params": {
            "n": 8,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": -1,
            "max_new_tokens": 5,
            "stop": ["\n"],
            "stop_token_ids": [2],
        },
    }


def test_greedy_decoding_ignores_the_sampling_distribution() -> None:
    parameters = token_request(PROMPT, SAMPLING, 1, greedy=True).body()["sampling_params"]
    assert (parameters["temperature"], parameters["top_p"], parameters["top_k"]) == (0.0, 1.0, -1)
