"""Answers in the form of OpenAI's chat completions, whole or as the events of a stream. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from rljob_trainer.gateway.errors import RequestError
from rljob_trainer.gateway.parsing import Parsed
from rljob_trainer.gateway.requests import ChatRequest

Json = dict[str, Any]
IMPOSSIBLE = -9999.0
"""OpenAI's log-probability of what has none"""
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer."""

    parsed: Parsed
    call_ids: tuple[str, ...]
    finish_reason: str
    logprobs_T: tuple[float, ...]
    tokens: tuple[str, ...] = ()
    """each token as text, where the request wants log-probabilities"""

    @property
    def calls(self) -> list[Json]:
        """The calls as OpenAI writes them."""
        return [
            {"id": number, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for number, call in zip(self.call_ids, self.parsed.calls, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Completion:
    """All answers to a request."""

    name: str
    """of the completion"""
    created: int
    """unix time [s]"""
    model: str
    prompt_tokens: int
    choices: tuple[Choice, ...]


def whole(completion: Completion, request: ChatRequest) -> Json:
    """Return the answer to a request that is not streamed."""
    choices = [
        {
            "index": index,
            "message": _message(choice),
            "logprobs": _logprobs(choice) if request.logprobs else None,
            "finish_reason": _finish_reason(choice),
        }
        for index, choice in enumerate(completion.choices)
    ]
    return {**_head(completion, "chat.completion"), "choices": choices, "usage": usage(completion)}


def events(completion: Completion, request: ChatRequest) -> Iterator[bytes]:
    """Yield the events of a stream: for each answer its role, its parts, and how it ended."""
    for index, choice in enumerate(completion.choices):
        logprobs = _logprobs(choice) if request.logprobs else None
        deltas: list[Json] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": choice.parsed.reasoning}] if choice.parsed.reasoning else []
        deltas += [{"content": choice.parsed.content}] if choice.parsed.content else []
        deltas += [{"tool_calls": [{"index": at, **call}]} for at, call in enumerate(choice.calls)]
        for delta in deltas:
            yield _event(completion, [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])
        end = {"index": index, "delta": {}, "logprobs": logprobs, "finish_reason": _finish_reason(choice)}
        yield _event(completion, [end])
    if request.with_usage:
        yield _event(completion, [], usage=usage(completion))
    yield DONE


def usage(completion: Completion) -> Json:
    """Return the numbers of tokens."""
    made = sum(len(choice.logprobs_T) for choice in completion.choices)
    asked = completion.prompt_tokens
    return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}


def refusal(error: RequestError) -> Json:
    """Return the body of an error."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": error.field, "code": error.code}}


def _head(completion: Completion, kind: str) -> Json:
    return {"id": completion.name, "object": kind, "created": completion.created, "model": completion.model}


def _event(completion: Completion, choices: Sequence[Mapping[str, Any]], **more: Any) -> bytes:
    content = {**_head(completion, "chat.completion.chunk"), "choices": choices, **more}
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def _message(choice: Choice) -> Json:
    message: Json = {"role": "assistant", "content": choice.parsed.content, "refusal": None}
    if choice.parsed.reasoning:
        message["reasoning_content"] = choice.parsed.reasoning
    if choice.calls:
        message |= {"content": choice.parsed.content or None, "tool_calls": choice.calls}
    return message


def _finish_reason(choice: Choice) -> str:
    return "tool_calls" if choice.calls and choice.finish_reason == "stop" else choice.finish_reason


def _logprobs(choice: Choice) -> Json:
    pairs = zip(choice.tokens, choice.logprobs_T, strict=True)
    return {
        "content": [
            {
                "token": token,
                "logprob": logprob if isfinite(logprob) else IMPOSSIBLE,
                "bytes": list(token.encode()),
                "top_logprobs": [],
            }
            for token, logprob in pairs
        ],
        "refusal": None,
    }
