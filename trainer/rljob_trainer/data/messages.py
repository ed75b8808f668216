"""One message of a conversation, checked, in the form in which services and chat templates have it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.nesting import is_deep

ASSISTANT = "assistant"
TOOL_CALLS = "tool_calls"
REASONING = ("reasoning_content", "reasoning", "thinking")
"""names that chat templates have for text that the assistant thinks before it says its content"""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """what else the chat template gets of it, as it stands in the data: calls of tools, reasoning, a name"""

    @property
    def calls(self) -> tuple[str, ...]:
        """Names of the tools that it calls."""
        return tuple(call["function"]["name"] for call in self.more.get(TOOL_CALLS, ()))

    @property
    def said(self) -> tuple[str, ...]:
        """All that it says, in pieces, none of them empty."""
        texts = (*(self.more.get(name) for name in REASONING), self.content)
        return tuple(filter(None, (*(text.strip() for text in texts if isinstance(text, str)), *self.calls)))


def message(turn: Any, where: str) -> Message:
    """Return the checked message; raise DataError naming where it stands."""
    match turn:
        case {"role": str(role), "content": str(content)}:
            pass
        case {"role": str(role), "tool_calls": [_, *_]} if turn.get("content") is None:
            content = ""
        case {"role": str(_), "content": list(parts)}:
            raise DataError(f"{where} {_fault_of_parts(parts)}")
        case _:
            raise DataError(f"{where} wants a `role` and a `content`, both text; is {turn!r:.200}")
    more = {name: value for name, value in turn.items() if name not in ("role", "content") and value is not None}
    if TOOL_CALLS in more:
        more[TOOL_CALLS] = _calls(more[TOOL_CALLS], where)
    return Message(role, content, more)


def _fault_of_parts(parts: list[Any]) -> str:
    kinds = {str(part.get("type")) for part in parts if isinstance(part, Mapping)} - {"text", "None"}
    rule = "has a `content` of several parts, not text"
    if kinds:
        return f"{rule}; parts of type {', '.join(sorted(kinds))} are not used: models are trained on text alone"
    return f"{rule}: join them into one text"


def _calls(calls: Any, where: str) -> list[Mapping[str, Any]]:
    """Return calls as chat templates take them, with arguments that are an object; services write it as JSON."""
    if not isinstance(calls, list):
        raise DataError(f"{where} has `{TOOL_CALLS}` {kind_of(calls)}, not a list")
    return [_call(call, where) for call in calls]


def _call(call: Any, where: str) -> Mapping[str, Any]:
    match call:
        case {"function": {"name": str(name), "arguments": arguments}} | {"name": str(name), "arguments": arguments}:
            pass
        case _:
            name, arguments = "", None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not name or not isinstance(arguments, Mapping) or is_deep(arguments):
        raise DataError(
            f"{where}: a call in `{TOOL_CALLS}` wants a function with a `name` and `arguments`, which are an object or "
            f"the JSON of one; is {call!r:.200}"
        )
    number = {"id": call["id"]} if "id" in call else {}
    return {**number, "type": "function", "function": {"name": name, "arguments": arguments}}


def kind_of(value: Any) -> str:
    """Return what a value is, for errors."""
    return "null" if value is None else f"of type {type(value).__name__}"
