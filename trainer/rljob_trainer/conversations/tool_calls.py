"""The calls in what a model has written, in the syntax of Hermes and Qwen, as SGLang's `hermes` parser reads it:

<tool_call>
{"name": "calculator", "arguments": {"expression": "19 * 21"}}
</tool_call>
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BEGIN, END = "<tool_call>", "</tool_call>"
_CALL = re.compile(rf"{BEGIN}(.*?)(?:{END}|(?={BEGIN})|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that can be tried."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BadCall:
    """What was meant as a call and is none."""

    reason: str
    """for the model"""


def calls(text: str) -> tuple[ToolCall | BadCall, ...]:
    """Return the calls in a text, in order; one without an end counts, and is a bad one unless it is whole."""
    return tuple(_call(found[1].strip()) for found in _CALL.finditer(text))


def _call(text: str) -> ToolCall | BadCall:
    try:
        match json.loads(text):
            case {"name": str(name), "arguments": {} as arguments}:
                return ToolCall(name, arguments)
            case {"name": str(name), **others} if not others.keys() - {"id", "type"}:
                return ToolCall(name, {})
            case _:
                return BadCall('a call is an object with "name" and "arguments"')
    except (ValueError, RecursionError) as error:
        return BadCall(f"the call is not JSON: {error}")
