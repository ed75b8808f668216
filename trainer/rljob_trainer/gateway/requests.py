"""Bodies of chat completions, read with distrust: what is asked of the model, or why it cannot be asked. Pure.

Fields that would change how tokens are drawn are the job's: those that agents usually set are ignored, all others are
refused. A field that is not known is refused, too.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_trainer.data.nesting import is_deep
from rljob_trainer.gateway.errors import RequestError

MOST_BYTES = 8 << 20
"""of a body"""
MOST_MESSAGES = 10_000
MOST_TOOLS = 128
MOST_CHOICES = 16
MOST_STOPS = 16
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""of a message, and what chat templates call them"""
IGNORED = frozenset(
    (
        *("model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("temperature", "top_p", "top_k", "min_p", "seed"),
        *("reasoning_effort", "verbosity", "parallel_tool_calls"),
    )
)
"""fields without effect: the job has one model and one way to draw tokens"""
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "top_logprobs": (None, 0),
    "modalities": (None, ["text"]),
}
"""fields that may only say what holds without them"""
READ = frozenset(
    (
        *("messages", "tools", "tool_choice", "response_format", "n", "stop"),
        *("max_tokens", "max_completion_tokens", "logprobs", "stream", "stream_options"),
    )
)

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What an agent asks."""

    messages: tuple[Message, ...]
    """as chat templates take them"""
    tools: tuple[Mapping[str, Any], ...] = ()
    choices: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    stream: bool = False
    with_usage: bool = False
    """whether a stream ends with the numbers of tokens"""
    json_schema: str | None = None
    """that the answer must follow; None: it is free"""


def chat_request(body: Any) -> ChatRequest:
    """Return what a body asks for. Raises RequestError."""
    if not isinstance(body, dict):
        raise RequestError("the body is not a JSON object")
    if is_deep(body):
        raise RequestError("the body is nested too deeply")
    _require_known(body)
    return ChatRequest(
        messages=_messages(body.get("messages")),
        tools=_tools(body),
        choices=number(body, "n", MOST_CHOICES) or 1,
        max_tokens=number(body, "max_completion_tokens") or number(body, "max_tokens"),
        stop=_stop(body.get("stop")),
        logprobs=_flag(body, "logprobs"),
        stream=_flag(body, "stream"),
        with_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        json_schema=_json_schema(body.get("response_format")),
    )


def assistant_message(content: str, calls: Sequence[Mapping[str, Any]]) -> Message:
    """Return the message of an answer as `chat_request` reads it when it comes back."""
    return _message({"role": "assistant", "content": content, "tool_calls": list(calls)}, "answer")


def _require_known(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if name in NEUTRAL and value not in NEUTRAL[name]:
            raise RequestError(f"{name} is not supported: the job decides how tokens are drawn", name)
        if name not in READ and name not in IGNORED and name not in NEUTRAL and value is not None:
            raise RequestError(f"{name} is not supported", name)
    if not isinstance(body.get("stream_options") or {}, dict):
        raise RequestError("stream_options is not an object", "stream_options")


def _messages(given: Any) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        raise RequestError("messages is not a list with at least one message", "messages")
    if len(given) > MOST_MESSAGES:
        raise RequestError(f"{len(given)} messages are more than {MOST_MESSAGES}", "messages")
    found = tuple(_message(each, f"messages[{index}]") for index, each in enumerate(given))
    if found[-1]["role"] not in ("user", "tool", "system"):
        raise RequestError("the last message is the assistant's: continuing one is not supported", "messages")
    return found


def _message(given: Any, where: str) -> Message:
    role = ROLES.get(given.get("role", "")) if isinstance(given, dict) and isinstance(given.get("role"), str) else None
    if role is None:
        raise RequestError(f"{where} has no role of {', '.join(ROLES)}", where)
    message: dict[str, Any] = {"role": role, "content": _content(given.get("content"), where)}
    if role == "assistant" and given.get("tool_calls"):
        message["tool_calls"] = _calls(given["tool_calls"], f"{where}.tool_calls")
    if given.get("function_call"):
        raise RequestError("function_call is not supported; use tool_calls", where)
    for name in ("name", "tool_call_id"):
        if isinstance(given.get(name), str):
            message[name] = given[name]
    return message


def _content(given: Any, where: str) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    parts = given if isinstance(given, list) else [given]
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise RequestError(f"{where} has content of type {kind!r:.40}; only text is supported", where)
    return "".join(part["text"] for part in parts)


def _calls(given: Any, where: str) -> list[dict[str, Any]]:
    """Return calls with arguments as objects, as chat templates want them."""
    calls = []
    for each in given if isinstance(given, list) else [None]:
        match each:
            case {"function": {"name": str(name), "arguments": str() | dict() as arguments}, **rest}:
                function = {"name": name, "arguments": _parsed(arguments)}
                number = {"id": rest["id"]} if isinstance(rest.get("id"), str) else {}
                calls.append({**number, "type": "function", "function": function})
            case _:
                raise RequestError(f"{where} has a call without the name or arguments of a function", where)
    return calls


def _parsed(arguments: str | dict[str, Any]) -> Any:
    if isinstance(arguments, dict):
        return arguments
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return arguments if is_deep(found) else found


def _tools(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    given, choice = body.get("tools") or [], body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise RequestError("tool_choice is not supported but for auto and none: the model is not forced", "tool_choice")
    if not isinstance(given, list) or len(given) > MOST_TOOLS:
        raise RequestError(f"tools is not a list of at most {MOST_TOOLS}", "tools")
    for index, each in enumerate(given):
        match each:
            case {"type": "function", "function": {"name": str()}}:
                pass
            case _:
                raise RequestError(f"tools[{index}] is not a function with a name", "tools")
    return () if choice == "none" else tuple(given)


def number(body: Mapping[str, Any], name: str, most: int | None = None) -> int | None:
    """Return a field that is a whole number from 1, or None. Raises RequestError."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 1 or (most is not None and value > most):
        limits = "1 or more" if most is None else f"1 to {most}"
        raise RequestError(f"{name} {value!r:.40} is not a whole number of {limits}", name)
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{name} {value!r:.40} is neither true nor false", name)
    return bool(value)


def _stop(given: Any) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else given or []
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(e, str) and e for e in stops):
        raise RequestError(f"stop is not a text or a list of at most {MOST_STOPS} texts", "stop")
    return tuple(stops)


def _json_schema(given: Any) -> str | None:
    match given:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return json.dumps({"type": "object"})
        case {"type": "json_schema", "json_schema": {"schema": {} as schema}}:
            return json.dumps(schema)
        case _:
            raise RequestError("response_format is none of text, json_object, json_schema", "response_format")
