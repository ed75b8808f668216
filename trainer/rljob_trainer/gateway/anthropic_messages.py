"""Anthropic's messages: bodies as those of chat completions, and answers in Anthropic's form. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_trainer.gateway.answers import Choice, Completion
from rljob_trainer.gateway.errors import RequestError
from rljob_trainer.gateway.pieces import Calls, Gave, Piece, Reasoned, Wrote
from rljob_trainer.gateway.requests import ChatRequest, chat_request

Json = dict[str, Any]
READ = {"max_tokens": "max_tokens", "stop_sequences": "stop", "stream": "stream"}
"""fields, and what chat completions call them"""
IGNORED = frozenset(("model", "metadata", "temperature", "top_p", "top_k", "thinking", "service_tier"))
"""fields without effect: the job has one model and one way to draw tokens"""
TRANSLATED = frozenset(("messages", "system", "tools", "tool_choice"))
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}
ERRORS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}


def messages_request(body: Any) -> ChatRequest:
    """Return what a body asks for. Raises RequestError."""
    if not isinstance(body, dict):
        raise RequestError("the body is not a JSON object")
    for name, value in body.items():
        if name not in READ and name not in IGNORED and name not in TRANSLATED and value is not None:
            raise RequestError(f"{name} is not supported", name)
    asked = {name: body[given] for given, name in READ.items() if given in body}
    system = _text(body.get("system") or "", "system")
    given = body.get("messages")
    messages = [{"role": "system", "content": system}] if system else []
    for index, each in enumerate(given if isinstance(given, list) else []):
        messages += _messages(each, f"messages[{index}]")
    return chat_request({**asked, **_tools(body), "messages": messages})


def message(completion: Completion) -> Json:
    """Return the answer to a request that is not streamed."""
    (choice,) = completion.choices
    return {
        **_head(completion),
        "content": _blocks(choice),
        "stop_reason": _stop_reason(choice),
        "usage": _usage(completion),
    }


@dataclass
class MessageEvents:
    """The events of a stream, written as the pieces come."""

    begun: Completion
    """without answers"""
    _open: str | None = None
    """kind of the block that has begun"""
    _blocks: int = 0

    def begin(self) -> Iterator[bytes]:
        """Yield what a stream begins with."""
        tokens = {"input_tokens": self.begun.prompt_tokens, "output_tokens": 0}
        yield _event(
            "message_start", message={**_head(self.begun), "content": [], "stop_reason": None, "usage": tokens}
        )

    def piece(self, index: int, piece: Piece) -> Iterator[bytes]:
        """Yield the events of a piece; there is one answer, of `index` 0."""
        match piece:
            case Reasoned(text):
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                yield from self._block("thinking", empty)
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case Wrote(text):
                yield from self._block("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case Calls(_, number, name):
                yield from self._closed()
                yield from self._block("tool_use", {"type": "tool_use", "id": number, "name": name, "input": {}})
            case Gave(_, arguments):
                yield self._delta({"type": "input_json_delta", "partial_json": json.dumps(_input(arguments))})

    def end(self, completion: Completion) -> Iterator[bytes]:
        """Yield what a stream ends with."""
        (choice,) = completion.choices
        if not self._blocks:
            yield from self._block("text", {"type": "text", "text": ""})
        yield from self._closed()
        ended = {"stop_reason": _stop_reason(choice), "stop_sequence": None}
        yield _event("message_delta", delta=ended, usage=_usage(completion))
        yield _event("message_stop")

    def failed(self, error: RequestError) -> Iterator[bytes]:
        """Yield what a stream ends with that cannot go on."""
        yield _event("error", error=refusal(error)["error"])

    def _block(self, kind: str, empty: Json) -> Iterator[bytes]:
        """Begin a block, unless one of its kind is open."""
        if self._open == kind:
            return
        yield from self._closed()
        self._open, self._blocks = kind, self._blocks + 1
        yield _event("content_block_start", index=self._blocks - 1, content_block=empty)

    def _closed(self) -> Iterator[bytes]:
        if self._open is not None:
            self._open = None
            yield _event("content_block_stop", index=self._blocks - 1)

    def _delta(self, delta: Json) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)


def refusal(error: RequestError) -> Json:
    """Return the body of an error."""
    kind = ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def _messages(given: Any, where: str) -> list[Json]:
    """Return a message as those of chat completions: each result of a tool becomes another message."""
    if not isinstance(given, dict):
        raise RequestError(f"{where} is not an object", where)
    content = given.get("content")
    if isinstance(content, str):
        return [{"role": given.get("role"), "content": content}]
    texts: list[str] = []
    calls: list[Json] = []
    results: list[Json] = []
    for block in content if isinstance(content, list) else [None]:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "tool_use", "id": str(number), "name": str(name), "input": {} as arguments}:
                function = {"name": name, "arguments": arguments}
                calls.append({"id": number, "type": "function", "function": function})
            case {"type": "tool_result", "tool_use_id": str(number), **rest}:
                result = _text(rest.get("content") or "", where)
                results.append({"role": "tool", "tool_call_id": number, "content": result})
            case {"type": "thinking" | "redacted_thinking"}:
                continue
            case _:
                kind = block.get("type") if isinstance(block, dict) else type(block).__name__
                raise RequestError(
                    f"{where} has content of type {kind!r:.40}; only text and tools are supported", where
                )
    said = [{"role": given.get("role"), "content": "".join(texts)} | ({"tool_calls": calls} if calls else {})]
    return [*results, *(said if texts or calls or not results else [])]


def _text(given: Any, where: str) -> str:
    parts = given if isinstance(given, list) else [{"type": "text", "text": given}]
    found = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in found):
        raise RequestError(f"{where} has content that is not text", where)
    return "".join(map(str, found))


def _tools(body: Mapping[str, Any]) -> Json:
    tools, choice = [], body.get("tool_choice")
    for index, each in enumerate(body.get("tools") or []):
        match each:
            case {"name": str(name), "input_schema": {} as schema}:
                described = {"description": each["description"]} if "description" in each else {}
                tools.append({"type": "function", "function": {"name": name, **described, "parameters": schema}})
            case _:
                raise RequestError(f"tools[{index}] has no name and input_schema", "tools")
    return {"tools": tools, "tool_choice": choice.get("type") if isinstance(choice, dict) else choice}


def _head(completion: Completion) -> Json:
    head = {"id": completion.name.replace("chatcmpl-", "msg_"), "type": "message", "role": "assistant"}
    return {**head, "model": completion.model, "stop_sequence": None}


def _blocks(choice: Choice) -> Sequence[Json]:
    blocks: list[Json] = []
    if choice.parsed.reasoning:
        blocks.append({"type": "thinking", "thinking": choice.parsed.reasoning, "signature": ""})
    if choice.parsed.content or not choice.parsed.calls:
        blocks.append({"type": "text", "text": choice.parsed.content})
    for number, call in zip(choice.call_ids, choice.parsed.calls, strict=True):
        blocks.append({"type": "tool_use", "id": number, "name": call.name, "input": _input(call.arguments)})
    return blocks


def _input(arguments: str) -> Any:
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _stop_reason(choice: Choice) -> str:
    if choice.parsed.calls and choice.finish_reason == "stop":
        return "tool_use"
    return STOP_REASONS.get(choice.finish_reason, "end_turn")


def _usage(completion: Completion) -> Json:
    made = sum(len(choice.logprobs_T) for choice in completion.choices)
    return {"input_tokens": completion.prompt_tokens, "output_tokens": made}


def _event(kind: str, **content: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **content})}\n\n".encode()
