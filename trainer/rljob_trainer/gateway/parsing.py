"""What a model has written, as an agent reads it: reasoning, text and calls of tools, by SGLang's parsers.

SGLang is imported where a parser is named: it takes seconds.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass
class Whole:
    """Passes a text on with its markers in one piece: parsers for streams take each for one token."""

    markers: Sequence[str]
    _kept: str = ""

    def add(self, text: str) -> str:
        """Return the text so far that was not passed on, less what may begin a marker."""
        text = self._kept + text
        lengths = range(min(max(map(len, self.markers), default=1) - 1, len(text)), 0, -1)
        held = next((n for n in lengths if any(each.startswith(text[-n:]) for each in self.markers)), 0)
        self._kept = text[len(text) - held :]
        return text[: len(text) - held]


@dataclass
class Division:
    """A text that grows, divided into reasoning and content up to its first call.

    SGLang's parsers for streams decide what is text already. What follows the beginning of a call waits for the end,
    where the whole text is parsed: so an answer has the same calls, streamed or not.
    """

    reasoning: str = ""
    """given out so far"""
    content: str = ""
    _reasoner: Any = None
    _caller: Any = None
    _read: str = ""
    """content as the model wrote it, calls included"""
    _told: int = 0
    """characters of it that are text"""
    _waits: bool = False
    """for the end"""
    _texts: list[str] = field(default_factory=list)
    _reasoning_markers: Whole = field(init=False)
    _call_markers: Whole = field(init=False)

    def __post_init__(self) -> None:
        reasoner, caller = (getattr(each, "detector", None) for each in (self._reasoner, self._caller))
        thought = () if reasoner is None else (reasoner.think_start_token, reasoner.think_end_token)
        self._reasoning_markers = Whole(thought)
        self._call_markers = Whole(() if caller is None else (caller.bot_token.strip(),))

    def add(self, text: str) -> tuple[str, str]:
        """Take more of the text; return what is reasoning, and what is content, of what can be told by now."""
        self._texts.append(text)
        if self._waits:
            return "", ""
        try:
            reasoning, content = self._divided(text)
        except Exception as error:  # noqa: BLE001  # what a model writes makes parsers raise anything
            log.info("action=parse_stream failed reason=%s: %.200s", type(error).__name__, error)
            self._waits = True
            return "", ""
        self.reasoning += reasoning
        self.content += content
        return reasoning, content

    def end(self, parsed: Parsed) -> tuple[str, str]:
        """Return what is left to give out of the parts of the whole text."""
        reasoning = "" if self.content else _rest(self.reasoning, parsed.reasoning)
        content = _rest(self.content, parsed.content)
        self.reasoning += reasoning
        self.content += content
        return reasoning, content

    @property
    def text(self) -> str:
        """All that was taken."""
        return "".join(self._texts)

    def _divided(self, text: str) -> tuple[str, str]:
        reasoning, content = "", text
        if self._reasoner is not None:
            reasoning, content = self._reasoner.parse_stream_chunk(self._reasoning_markers.add(text))
        if self._caller is None or not content:
            return reasoning or "", content or ""
        self._read += content
        text, calls = self._caller.parse_stream_chunk(self._call_markers.add(content))
        # Some detectors drop characters of what is not a call: then the end decides.
        is_text = self._read.startswith(text, self._told)
        self._waits = bool(calls) or not is_text or self._caller.has_tool_call(self._read)
        if self._waits:
            return reasoning or "", ""
        self._told += len(text)
        return reasoning or "", text


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

    def division(self, tools: Sequence[Mapping[str, Any]]) -> Division:
        """Return what divides a text while it grows."""
        reasoner = caller = None
        if self.reasoning is not None:
            from sglang.srt.parser.reasoning_parser import ReasoningParser

            reasoner = ReasoningParser(self.reasoning, stream_reasoning=True)
        if self.tools is not None and tools:
            from sglang.srt.entrypoints.openai.protocol import Tool
            from sglang.srt.function_call.function_call_parser import FunctionCallParser

            try:
                caller = FunctionCallParser([Tool.model_validate(tool) for tool in tools], self.tools)
            except ValueError as error:
                log.info("action=parse_stream failed reason=%.200s", error)
        return Division(_reasoner=reasoner, _caller=caller)

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


def _rest(given: str, whole: str) -> str:
    """Return what of a text was not given out; parsers differ in the white space at its beginning."""
    if not given.strip():
        return whole
    given, whole = given.lstrip(), whole.lstrip()
    return whole[len(given) :] if whole.startswith(given) else ""


def _require(field: str, name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise UnknownParserError(
            f"rollout.agent.{field} {name!r} is not a parser of SGLang: {', '.join(sorted(known))}"
        )
