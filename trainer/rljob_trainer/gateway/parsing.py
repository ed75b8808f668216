"""What a model has written, as an agent reads it: reasoning, text and calls of tools, by SGLang's parsers.

SGLang is imported where a parser is named: it takes seconds.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)


class UnknownParserError(ValueError):
    """SGLang has no parser of this name; the text lists those that it has."""


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a tool."""

    name: str
    arguments: str
    """as JSON"""


@dataclass(frozen=True, slots=True)
class Parsed:
    """An answer in its parts."""

    content: str
    reasoning: str = ""
    calls: tuple[Called, ...] = ()


@dataclass(frozen=True, slots=True)
class Parsers:
    """The parsers of one model, by SGLang's names; None: there is none."""

    tools: str | None = None
    reasoning: str | None = None

    def check(self) -> None:
        """Raise UnknownParserError if SGLang does not have them."""
        if self.tools is not None:
            from sglang.srt.function_call.function_call_parser import FunctionCallParser

            _require("toolParser", self.tools, FunctionCallParser.ToolCallParserEnum)
        if self.reasoning is not None:
            from sglang.srt.parser.reasoning_parser import ReasoningParser

            _require("reasoningParser", self.reasoning, ReasoningParser.DetectorMap)

    @property
    def need_markers(self) -> bool:
        """Whether texts keep their special tokens: some parsers look for them."""
        return self.tools is not None or self.reasoning is not None

    def parsed(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Parsed:
        """Return the parts of a text. What a parser fails on is text, as in SGLang's own server."""
        reasoning, content = self._reasoning(text)
        return self._calls(reasoning, content, tools)

    def _reasoning(self, text: str) -> tuple[str, str]:
        if self.reasoning is None:
            return "", text
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        reasoning, content = ReasoningParser(self.reasoning, stream_reasoning=False).parse_non_stream(text)
        return reasoning or "", content or ""

    def _calls(self, reasoning: str, content: str, tools: Sequence[Mapping[str, Any]]) -> Parsed:
        if self.tools is None or not tools:
            return Parsed(content, reasoning)
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser

        try:
            parser = FunctionCallParser([Tool.model_validate(tool) for tool in tools], self.tools)
            if not parser.has_tool_call(content):
                return Parsed(content, reasoning)
            rest, calls = parser.parse_non_stream(content)
        except Exception as error:  # noqa: BLE001  # what a model writes makes parsers raise anything
            log.info("action=parse failed reason=%s: %.200s", type(error).__name__, error)
            return Parsed(content, reasoning)
        called = tuple(Called(call.name or "", call.parameters) for call in calls)
        return Parsed(rest if called else content, reasoning, called)


def _require(field: str, name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise UnknownParserError(
            f"rollout.agent.{field} {name!r} is not a parser of SGLang: {', '.join(sorted(known))}"
        )
