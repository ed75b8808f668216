"""OpenAI's responses: bodies as those of chat completions, and answers as items, whole or as a stream. Pure.

    input, instructions, previous_response_id ─► messages of chat completions ─► … ─► items: reasoning, message, calls

What follows each other in one answer of the model, a text and its calls, is one message again when it comes back.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from rljob_trainer.data.nesting import is_deep
from rljob_trainer.gateway.answers import IMPOSSIBLE, Choice, Completion
from rljob_trainer.gateway.errors import RequestError
from rljob_trainer.gateway.pieces import Calls, Gave, Piece, Reasoned, Wrote, pieces
from rljob_trainer.gateway.requests import (
    MOST_MESSAGES,
    ROLES,
    ChatRequest,
    Message,
    assistant_message,
    chat_request,
    number,
)

Json = dict[str, Any]
History = tuple[Message, ...]
IGNORED = frozenset(
    (
        *("model", "user", "metadata", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "stream_options"),
        *("temperature", "top_p", "reasoning", "parallel_tool_calls"),
    )
)
"""fields without effect: the job has one model and one way to draw tokens"""
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "background": (None, False),
    "truncation": (None, "disabled"),
    "top_logprobs": (None, 0),
}
"""fields that may only say what holds without them"""
READ = frozenset(
    (
        *("input", "instructions", "previous_response_id", "store", "include", "text"),
        *("max_output_tokens", "tools", "tool_choice", "stream"),
    )
)
LOGPROBS = "message.output_text.logprobs"
INCLUDED = frozenset((LOGPROBS, "reasoning.encrypted_content"))
"""what `include` may name; reasoning is not encrypted, and so is there"""
TEXTS = frozenset(("input_text", "output_text", "text"))


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """What an agent asks."""

    chat: ChatRequest
    said: History
    """all messages but the instructions, which the next request does not inherit"""
    previous: str | None = None
    is_stored: bool = True
    instructions: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    """as they were given"""


def responses_request(body: Any, stored: Mapping[str, History]) -> ResponsesRequest:
    """Return what a body asks for, with the histories of earlier responses. Raises RequestError."""
    if not isinstance(body, dict):
        raise RequestError("the body is not a JSON object")
    if is_deep(body):
        raise RequestError("the body is nested too deeply")
    _require_known(body)
    instructions, previous, store = (
        _typed(body, name, kind)
        for name, kind in (("instructions", str), ("previous_response_id", str), ("store", bool))
    )
    if previous is not None and previous not in stored:
        raise RequestError(
            f"previous_response_id {previous!r:.60} names none of the stored responses of this session",
            "previous_response_id",
        )
    said = (*stored.get(previous or "", ()), *_messages(body.get("input")))
    given = {"messages": [*_system(instructions), *said], "max_tokens": number(body, "max_output_tokens")}
    tools = _tools(body.get("tools"))
    asked = chat_request(
        given
        | {"tools": tools, "tool_choice": body.get("tool_choice"), "stream": body.get("stream")}
        | {"response_format": _format(body.get("text")), "logprobs": LOGPROBS in _included(body.get("include"))}
    )
    first = 1 if instructions else 0
    written = tuple(body.get("tools") or ())
    return ResponsesRequest(asked, asked.messages[first:], previous, store is not False, instructions, written)


def history(asked: ResponsesRequest, completion: Completion) -> History:
    """Return what a request continues that names this answer as its previous one."""
    (choice,) = completion.choices
    return (*asked.said, assistant_message(choice.parsed.content, choice.calls))


def response_name(completion: Completion) -> str:
    """Return the name of an answer, by which a later request may continue it."""
    return f"resp_{_stem(completion)}"


def response(completion: Completion, asked: ResponsesRequest) -> Json:
    """Return the answer to a request that is not streamed."""
    writer = ResponseEvents(completion, asked)
    for piece in pieces(completion.choices[0]):
        writer.add(piece)
    return writer.whole(completion)


@dataclass
class ResponseEvents:
    """The events of a stream, written as the pieces come."""

    begun: Completion
    """without answers"""
    asked: ResponsesRequest
    _items: list[Json] = field(default_factory=list)
    _events: int = 0

    def begin(self) -> Iterator[bytes]:
        """Yield what a stream begins with."""
        content = {**self._head("in_progress"), "output": [], "usage": None}
        yield self._event("response.created", response=content)
        yield self._event("response.in_progress", response=content)

    def piece(self, index: int, piece: Piece) -> Iterator[bytes]:
        """Yield the events of a piece; there is one answer, of `index` 0."""
        before = len(self._items)
        closed = self._items[-1] if self._items else None
        self.add(piece)
        at, item = len(self._items) - 1, self._items[-1]
        if len(self._items) > before:
            if closed is not None:
                yield from self._ended(at - 1, closed, None)
            yield from self._opened(at, item, piece)
        where = {"item_id": item["id"], "output_index": at}
        match piece:
            case Reasoned(text):
                yield self._event("response.reasoning_text.delta", **where, content_index=0, delta=text)
            case Wrote(text):
                yield self._event("response.output_text.delta", **where, content_index=0, delta=text, logprobs=[])
            case Gave(_, arguments):
                yield self._event("response.function_call_arguments.delta", **where, delta=arguments)
            case Calls():
                pass

    def end(self, completion: Completion) -> Iterator[bytes]:
        """Yield what a stream ends with."""
        if not self._items:
            yield from self.piece(0, Wrote(""))
        (choice,) = completion.choices
        yield from self._ended(len(self._items) - 1, self._items[-1], choice)
        content = self.whole(completion)
        yield self._event(f"response.{content['status']}", response=content)

    def failed(self, error: RequestError) -> Iterator[bytes]:
        """Yield what a stream ends with that cannot go on."""
        yield self._event("error", code=error.code or "server_error", message=error.message, param=error.field)

    def add(self, piece: Piece) -> None:
        """Take a piece into the items."""
        match piece:
            case Reasoned(text):
                item = self._item("reasoning", "rs", summary=[], content=[{"type": "reasoning_text", "text": ""}])
                item["content"][0]["text"] += text
            case Wrote(text):
                item = self._item("message", "msg", role="assistant", content=[_text_part("")])
                item["content"][0]["text"] += text
            case Calls(_, number, name):
                self._new("function_call", "fc", call_id=number, name=name, arguments="")
            case Gave(_, arguments):
                self._items[-1]["arguments"] += arguments

    def whole(self, completion: Completion) -> Json:
        """Return the answer with all items."""
        (choice,) = completion.choices
        if not self._items:
            self.add(Wrote(""))
        for item in self._items:
            item["status"] = "completed"
        self._items[-1]["status"] = _status(choice)
        if self.asked.chat.logprobs:
            for item in self._items:
                if item["type"] == "message":
                    item["content"][0]["logprobs"] = _logprobs(choice)
                    break
        made = len(choice.logprobs_T)
        usage = {
            "input_tokens": completion.prompt_tokens,
            "input_tokens_details": {"cached_tokens": completion.cached_tokens},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": completion.prompt_tokens + made,
        }
        cut = {"reason": "max_output_tokens"} if _status(choice) == "incomplete" else None
        return {**self._head(_status(choice)), "incomplete_details": cut, "output": self._items, "usage": usage}

    def _head(self, status: str) -> Json:
        return {
            "id": response_name(self.begun),
            "object": "response",
            "created_at": self.begun.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": self.asked.instructions,
            "max_output_tokens": self.asked.chat.max_tokens,
            "metadata": {},
            "model": self.begun.model,
            "parallel_tool_calls": True,
            "previous_response_id": self.asked.previous,
            "store": self.asked.is_stored,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": list(self.asked.tools),
        }

    def _item(self, kind: str, prefix: str, **content: Any) -> Json:
        """Return the last item if it is of this kind, else a new one."""
        last = self._items[-1] if self._items else None
        return last if last is not None and last["type"] == kind else self._new(kind, prefix, **content)

    def _new(self, kind: str, prefix: str, **content: Any) -> Json:
        name = f"{prefix}_{_stem(self.begun)}{len(self._items):02x}"
        self._items.append({"id": name, "type": kind, "status": "in_progress", **content})
        return self._items[-1]

    def _opened(self, at: int, item: Json, piece: Piece) -> Iterator[bytes]:
        empty: Json = {**item, **({"content": []} if "content" in item else {"arguments": ""})}
        yield self._event("response.output_item.added", output_index=at, item=empty)
        if isinstance(piece, Wrote):
            where = {"item_id": item["id"], "output_index": at, "content_index": 0}
            yield self._event("response.content_part.added", **where, part=_text_part(""))

    def _ended(self, at: int, item: Json, choice: Choice | None) -> Iterator[bytes]:
        """Yield the end of an item; `choice` is there for the last one."""
        item["status"] = "completed" if choice is None else _status(choice)
        where = {"item_id": item["id"], "output_index": at}
        match item["type"]:
            case "reasoning":
                text = item["content"][0]["text"]
                yield self._event("response.reasoning_text.done", **where, content_index=0, text=text)
            case "message":
                (part,) = item["content"]
                logprobs = _logprobs(choice) if choice is not None and self.asked.chat.logprobs else []
                said = {"text": part["text"], "logprobs": logprobs}
                yield self._event("response.output_text.done", **where, content_index=0, **said)
                yield self._event("response.content_part.done", **where, content_index=0, part=part)
            case _:
                called = {"name": item["name"], "arguments": item["arguments"]}
                yield self._event("response.function_call_arguments.done", **where, **called)
        yield self._event("response.output_item.done", output_index=at, item=item)

    def _event(self, kind: str, **content: Any) -> bytes:
        written = json.dumps({"type": kind, "sequence_number": self._events, **content})
        self._events += 1
        return f"event: {kind}\ndata: {written}\n\n".encode()


def _require_known(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if name in NEUTRAL and not any(value is each or value == each for each in NEUTRAL[name]):
            raise RequestError(f"{name} is not supported but for {NEUTRAL[name][-1]!r}", name)
        if name not in READ and name not in IGNORED and name not in NEUTRAL and value is not None:
            raise RequestError(f"{name} is not supported", name)


def _typed(body: Mapping[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if value is not None and not isinstance(value, kind):
        raise RequestError(f"{name} {value!r:.40} is not of type {kind.__name__}", name)
    return value


def _system(instructions: str | None) -> list[Json]:
    return [{"role": "system", "content": instructions}] if instructions else []


def _messages(given: Any) -> list[Json]:
    """Return items as messages of chat completions."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given or len(given) > MOST_MESSAGES:
        raise RequestError(f"input is neither a text nor a list of 1 to {MOST_MESSAGES} items", "input")
    messages: list[Json] = []
    for index, each in enumerate(given):
        _take(each, messages, f"input[{index}]")
    return messages


def _take(item: Any, messages: list[Json], where: str) -> None:
    match item:
        case {"type": "function_call", "call_id": str(number), "name": str(name), "arguments": str(arguments)}:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            function = {"name": name, "arguments": arguments}
            messages[-1].setdefault("tool_calls", []).append({"id": number, "type": "function", "function": function})
        case {"type": "function_call_output", "call_id": str(number), "output": output}:
            messages.append({"role": "tool", "tool_call_id": number, "content": _text(output, f"{where}.output")})
        case {"type": "reasoning"}:
            pass
        case {"role": role, "content": content} if item.get("type") in (None, "message"):
            if not isinstance(role, str) or role not in ROLES or role == "tool":
                raise RequestError(f"{where} has no role of system, developer, user, assistant", where)
            messages.append({"role": role, "content": _text(content, f"{where}.content")})
        case _:
            kind = item.get("type", "message") if isinstance(item, dict) else type(item).__name__
            raise RequestError(
                f"{where} of type {kind!r:.40} is not supported, or lacks fields; there are message, reasoning,"
                " function_call and function_call_output",
                where,
            )


def _text(given: Any, where: str) -> str:
    if isinstance(given, str):
        return given
    texts: list[str] = []
    for part in given if isinstance(given, list) else [given]:
        match part:
            case {"type": str(kind), "text": str(text)} if kind in TEXTS:
                texts.append(text)
            case {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case _:
                unknown = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise RequestError(f"{where} has a part of type {unknown!r:.40}; only text is supported", where)
    return "".join(texts)


def _tools(given: Any) -> list[Json]:
    """Return tools as those of chat completions."""
    if given is not None and not isinstance(given, list):
        raise RequestError("tools is not a list", "tools")
    tools = []
    for index, each in enumerate(given or []):
        match each:
            case {"type": "function", "name": str()}:
                kept = ("name", "description", "parameters")
                function = {name: each[name] for name in kept if each.get(name) is not None}
                tools.append({"type": "function", "function": function})
            case _:
                kind = each.get("type") if isinstance(each, dict) else type(each).__name__
                raise RequestError(f"tools[{index}] of type {kind!r:.40} is not a function with a name", "tools")
    return tools


def _format(given: Any) -> Any:
    """Return the format of a text as chat completions' `response_format`."""
    text = {} if given is None else given
    if not isinstance(text, dict) or not text.keys() <= {"format", "verbosity"}:
        raise RequestError("text has fields other than format and verbosity", "text")
    match text.get("format"):
        case {"type": "json_schema", **rest}:
            return {"type": "json_schema", "json_schema": rest}
        case None | {"type": "text" | "json_object"} as form:
            return form
        case _:
            raise RequestError("text.format is none of text, json_object, json_schema", "text")


def _included(given: Any) -> Sequence[str]:
    names = given or []
    if not isinstance(names, list) or not all(isinstance(each, str) and each in INCLUDED for each in names):
        raise RequestError(f"include is not a list of {', '.join(sorted(INCLUDED))}", "include")
    return names


def _stem(completion: Completion) -> str:
    return completion.name.removeprefix("chatcmpl-")


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _status(choice: Choice) -> str:
    return "incomplete" if choice.finish_reason == "length" else "completed"


def _logprobs(choice: Choice) -> list[Json]:
    """Return those of all tokens, also of calls and reasoning: which token is of which item is not known."""
    pairs = zip(choice.tokens, choice.logprobs_T, strict=True)
    return [
        {
            "token": token,
            "logprob": value if isfinite(value) else IMPOSSIBLE,
            "bytes": list(token.encode()),
            "top_logprobs": [],
        }
        for token, value in pairs
    ]
