"""A stream in the form of OpenAI's chat completions, written as the pieces come. Pure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rljob_trainer.gateway.answers import Completion, finish_reason, head, logprobs_of, refusal, usage
from rljob_trainer.gateway.errors import RequestError
from rljob_trainer.gateway.pieces import Calls, Gave, Piece, Reasoned, Wrote
from rljob_trainer.gateway.requests import ChatRequest

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ChatEvents:
    """The events of a stream."""

    begun: Completion
    """without answers"""
    asked: ChatRequest

    def begin(self) -> Iterator[bytes]:
        """Yield what a stream begins with: the role of each answer."""
        for index in range(self.asked.choices):
            yield self._delta(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, piece: Piece) -> Iterator[bytes]:
        """Yield the event of a piece of an answer."""
        match piece:
            case Reasoned(text):
                yield self._delta(index, {"reasoning_content": text})
            case Wrote(text):
                yield self._delta(index, {"content": text})
            case Calls(at, number, name):
                function = {"name": name, "arguments": ""}
                call = {"index": at, "id": number, "type": "function", "function": function}
                yield self._delta(index, {"tool_calls": [call]})
            case Gave(at, arguments):
                yield self._delta(index, {"tool_calls": [{"index": at, "function": {"arguments": arguments}}]})

    def end(self, completion: Completion) -> Iterator[bytes]:
        """Yield what a stream ends with: how each answer ended, and its log-probabilities."""
        for index, choice in enumerate(completion.choices):
            logprobs = logprobs_of(choice) if self.asked.logprobs else None
            ended = {"index": index, "delta": {}, "logprobs": logprobs, "finish_reason": finish_reason(choice)}
            yield self._event(choices=[ended])
        if self.asked.with_usage:
            yield self._event(choices=[], usage=usage(completion))
        yield DONE

    def failed(self, error: RequestError) -> Iterator[bytes]:
        """Yield what a stream ends with that cannot go on."""
        yield b"data: " + json.dumps(refusal(error)).encode() + b"\n\n"

    def _delta(self, index: int, delta: Json) -> bytes:
        return self._event(choices=[{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def _event(self, **content: Any) -> bytes:
        written = json.dumps({**head(self.begun, "chat.completion.chunk"), **content})
        return b"data: " + written.encode() + b"\n\n"
