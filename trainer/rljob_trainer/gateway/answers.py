"""Answers in the form of OpenAI's chat completions. Pure."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

from rljob_trainer.gateway.errors import RequestError
from rljob_trainer.gateway.parsing import Parsed
from rljob_trainer.gateway.requests import ChatRequest

Json = dict[str, Any]
IMPOSSIBLE = -9999.0
"""OpenAI's log-probability of what has none"""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer."""

    parsed: Parsed
    call_ids: tuple[str, ...]
    finish_reason: str
    logprobs_T: tuple[float, ...]
    tokens: tuple[str, ...] = ()
    """each token as text, where the request wants log-probabilities"""
    cached: int = 0
    """tokens of the prompt that the engine had from earlier requests"""

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

    @property
    def cached_tokens(self) -> int:
        """Those of the prompt that the engine had, at the first answer."""
        return self.choices[0].cached if self.choices else 0


def whole(completion: Completion, request: ChatRequest) -> Json:
    """Return the answer to a request that is not streamed."""
    choices = [
        {
            "index": index,
            "message": _message(choice),
            "logprobs": logprobs_of(choice) if request.logprobs else None,
            "finish_reason": finish_reason(choice),
        }
        for index, choice in enumerate(completion.choices)
    ]
    return {**head(completion, "chat.completion"), "choices": choices, "usage": usage(completion)}


def usage(completion: Completion) -> Json:
    """Return the numbers of tokens."""
    made = sum(len(choice.logprobs_T) for choice in completion.choices)
    asked = completion.prompt_tokens
    cached = {"cached_tokens": completion.cached_tokens}
    numbers = {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}
    return {**numbers, "prompt_tokens_details": cached}


def refusal(error: RequestError) -> Json:
    """Return the body of an error."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": error.field, "code": error.code}}


def head(completion: Completion, kind: str) -> Json:
    """Return what each answer and each event begins with."""
    return {"id": completion.name, "object": kind, "created": completion.created, "model": completion.model}


def _message(choice: Choice) -> Json:
    message: Json = {"role": "assistant", "content": choice.parsed.content, "refusal": None}
    if choice.parsed.reasoning:
        message["reasoning_content"] = choice.parsed.reasoning
    if choice.calls:
        message |= {"content": choice.parsed.content or None, "tool_calls": choice.calls}
    return message


def finish_reason(choice: Choice) -> str:
    """Return OpenAI's word for how an answer ended."""
    return "tool_calls" if choice.calls and choice.finish_reason == "stop" else choice.finish_reason


def logprobs_of(choice: Choice) -> Json:
    """Return the log-probabilities of all tokens."""
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
