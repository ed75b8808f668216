"""Turns rows into prompts: the text and the tokens that an engine continues.

Chat templates write begin-of-text themselves, so their text is tokenised without further special tokens; text without a
template gets those that the tokenizer adds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

from jinja2 import TemplateError

from rljob_api.sections import Data
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.messages import ASSISTANT, TOOL_CALLS, Message
from rljob_trainer.data.rows import Row, require_response
from rljob_trainer.data.template import ASSISTANT_1, USER_1, assistant_end, default_system_turn, opens_assistant_turn
from rljob_trainer.data.trials import try_encoding, try_template
from rljob_trainer.processes.text_makers import ForeignFileError
from rljob_trainer.samples import Prompt, Segment

QUESTION = "{question}"


class Tokenizer(Protocol):
    """What is needed of a tokenizer; those of transformers have it, see `tokenizer.py`."""

    @property
    def chat_template(self) -> Any:
        """None or empty: it has none."""

    @property
    def bos_token(self) -> str | None:
        """What text begins with; None: nothing."""

    @property
    def eos_token(self) -> str | None:
        """What text ends with; None: nothing."""

    def apply_chat_template(
        self, conversation: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool, tools: Any = None
    ) -> Any:
        """Return the text. Raises jinja2's TemplateError."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the tokens. Raises TypeError or ValueError for what is not text."""


@dataclass(frozen=True, slots=True)
class SftResponse:
    """A response from the data, to the prompt of its row."""

    text: str
    tokens_T: tuple[int, ...]
    """with the token that ends the turn, and nothing after it"""
    segments: tuple[Segment, ...] = ()
    """which of `tokens_T` are the assistant's, in order; empty: all"""


class Renderer:
    """Renders rows the way `spec.data` describes. Raises DataError where the tokenizer or a row cannot follow."""

    def __init__(self, data: Data, tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """Study the template; `tools` are JSON schemas of what the model may call."""
        self._data = data
        self._tokenizer = tokenizer
        self._tools = list(tools)
        self._unwanted_turn = ""
        if data.chat_template:
            self._study_template()

    def prompt(self, uid: str, row: Row) -> Prompt:
        """Return the row as a prompt with this uid."""
        text = self._text(row)
        tokens = self._tokens(text, row, special=not self._data.chat_template)
        return Prompt(uid, row.question, text, tokens, row.label, row.metadata)

    def reference(self, row: Row) -> SftResponse:
        """Return what follows the row's prompt: the label as the assistant's turn, or the rest of the conversation.

        Turns of the assistant, their ends included, are tokenised apart from what is around them, as engines make them.
        """
        if row.answers:
            pieces = list(self._pieces(row))
            tokens = [self._tokens(text, row, special=False) for text, _ in pieces]
            segments = (Segment(len(ids), text, own) for ids, (text, own) in zip(tokens, pieces, strict=True))
            text = "".join(text for text, _ in pieces)
            return SftResponse(text, tuple(chain.from_iterable(tokens)), tuple(segments))
        require_response(row)
        text = self._ended(self._answer(row) if self._data.chat_template else row.label, row.label)
        return SftResponse(text, self._tokens(text, row, special=False))

    def _pieces(self, row: Row) -> Iterator[tuple[str, bool]]:
        """Yield what follows the prompt of a whole conversation in pieces, each with whether the assistant says it.

        A turn of the assistant begins where the template opens it after the turns before, and ends with what the
        template writes after such turns, behind all that is said in it.
        """
        if self._data.assistant_prefill:
            raise DataError(f"{row.place}: data.assistantPrefill begins one answer, and this is a whole conversation")
        before, answers = self._conversation(row), row.answers
        spoken = [number for number, turn in enumerate(answers) if turn.role == ASSISTANT]
        openings = [self._turns(row, (*before, *answers[:number]), True) for number in spoken]
        whole, end = self._turns(row, (*before, *answers), False), len(openings[0])
        for number, opened, limit in zip(spoken, openings, [*map(len, openings[1:]), len(whole)], strict=True):
            behind = _behind(answers[number], whole, len(opened), limit)
            ends = whole.find(self._answer_end, behind, limit) if self._answer_end else len(whole.rstrip())
            if -1 in (behind, ends) or not whole.startswith(opened) or not (self._answer_end or number == spoken[-1]):
                raise DataError(
                    f"{row.place}: the chat template does not write message {len(row.messages) + number} as the "
                    "assistant would have said it (some drop the reasoning of earlier turns, some mark no ends); give "
                    "each answer a separate row, with the messages so far and a label"
                )
            if end < len(opened):
                yield whole[end : len(opened)], False
            end = ends + len(self._answer_end)
            yield whole[len(opened) : end] + ("" if self._answer_end else self._eos), True

    @cached_property
    def _answer_end(self) -> str:
        return assistant_end(self._render)

    def _ended(self, text: str, said: str) -> str:
        """Return the assistant's turn with its end, for which a template that writes none leaves the tokenizer's."""
        return text + self._eos if text.endswith(said.rstrip()) else text

    @property
    def _eos(self) -> str:
        if not self._tokenizer.eos_token:
            raise DataError("neither the chat template nor the tokenizer (eos_token) says how a response ends")
        return self._tokenizer.eos_token

    def _answer(self, row: Row) -> str:
        """Return the assistant's turn after the prompt; what the template writes after its end no engine would make."""
        prompt = self._text(row)
        said = self._prefill(row) + row.label
        whole = self._turns(row, (*self._conversation(row), Message("assistant", said)), False)
        if not whole.startswith(prompt):
            raise DataError(
                f"{row.place}: the chat template does not write an answer where it has opened the assistant's turn; "
                "mend the template, or set data.chatTemplate to false"
            )
        return whole.removeprefix(prompt).rstrip()

    def _text(self, row: Row) -> str:
        opened = self._turns(row, self._conversation(row), True) if self._data.chat_template else self._plain(row)
        return opened + self._prefill(row)

    def _prefill(self, row: Row) -> str:
        return self._data.assistant_prefill.replace(QUESTION, row.question)

    def _tokens(self, text: str, row: Row, special: bool) -> tuple[int, ...]:
        try:
            try_encoding(self._tokenizer, text, special)
            return tuple(self._tokenizer.encode(text, add_special_tokens=special))
        except (TypeError, ValueError, ForeignFileError) as error:
            raise DataError(f"{row.place}: the tokenizer cannot encode it: {error}") from error

    def _plain(self, row: Row) -> str:
        if not row.templated:
            raise DataError(f"{row.place}: chat messages need data.chatTemplate")
        return self._user_turn(row)

    def _turns(self, row: Row, messages: Sequence[Message], open_assistant_turn: bool) -> str:
        try:
            text = self._render(messages, open_assistant_turn, self._tools or None)
        except DataError as error:
            raise DataError(f"{row.place}: {error}") from error
        if any(message.calls for message in messages) and not self._shows_calls:
            raise DataError(
                f"{row.place}: the chat template leaves {TOOL_CALLS} out; put the calls into the messages' content, or "
                "use a template that takes them"
            )
        if messages[0].role == "system" or self._tools:
            return text  # the template lists tools in its own system turn
        head, _, tail = text.partition(self._unwanted_turn) if self._unwanted_turn else ("", "", text)
        return head + tail

    def _conversation(self, row: Row) -> tuple[Message, ...]:
        turns = (Message("user", self._user_turn(row)),) if row.templated else row.messages
        if self._data.system_prompt is None:
            return turns
        if turns[0].role == "system":
            raise DataError(f"{row.place}: the messages have a system turn, and data.systemPrompt is set as well")
        return (Message("system", self._data.system_prompt), *turns)

    def _user_turn(self, row: Row) -> str:
        return self._data.prompt_template.replace(QUESTION, row.question)

    @cached_property
    def _shows_calls(self) -> bool:
        call = {"type": "function", "function": {"name": "call-marker", "arguments": {}}}
        return "call-marker" in self._render((USER_1, Message(ASSISTANT, "", {TOOL_CALLS: [call]})), False)

    def _study_template(self) -> None:
        if not self._tokenizer.chat_template:
            raise DataError("the model's tokenizer has no chat template; set data.chatTemplate to false")
        if not opens_assistant_turn(self._render):
            raise DataError(
                "the chat template ignores add_generation_prompt, so the model would continue the user's turn; "
                "mend the template, or set data.chatTemplate to false"
            )
        if self._data.system_prompt is None:
            self._unwanted_turn = default_system_turn(self._render, self._tokenizer.bos_token or "")
        if self._tools:
            self._study_tools()

    def _study_tools(self) -> None:
        """Raise DataError unless the template renders tools and their results."""
        system = (Message("system", self._data.system_prompt),) if self._data.system_prompt is not None else ()
        prompt = self._render((*system, USER_1), True, self._tools)
        unseen = [name for tool in self._tools if (name := tool["function"]["name"]) not in prompt]
        if unseen:
            raise DataError(
                f"the chat template does not show rollout.tools to the model: no prompt contains {', '.join(unseen)}; "
                "describe it in data.systemPrompt, or use a template that takes tools"
            )
        result = Message("tool", "result-marker")
        if result.content not in self._render((*system, USER_1, ASSISTANT_1, result), True, self._tools):
            raise DataError(
                "the chat template shows no turns of the role tool, which have the results of rollout.tools"
            )

    def _render(
        self, messages: Sequence[Message], open_assistant_turn: bool, tools: list[Mapping[str, Any]] | None = None
    ) -> str:
        conversation = [{"role": message.role, "content": message.content, **message.more} for message in messages]
        try:
            try_template(self._tokenizer, conversation, open_assistant_turn, tools)
            text: str = self._tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=open_assistant_turn, tools=tools
            )
        except ForeignFileError as error:
            raise DataError(f"the chat template cannot be used for these turns: {error}") from error
        except (TemplateError, TypeError, KeyError) as error:
            roles = ", ".join(message.role for message in messages)
            raise DataError(f"the chat template refuses turns of {roles}: {error}") from error
        return text


def _behind(message: Message, text: str, begin: int, limit: int) -> int:
    """Return where all that the message says has been said, between two places of the text; -1 where it is not."""
    places = [(text.find(piece, begin, limit), len(piece)) for piece in message.said]
    return -1 if any(place < 0 for place, _ in places) else max(place + length for place, length in places)
