"""Turns rows into prompts: the text and the tokens that an engine continues.

Chat templates write begin-of-text themselves, so their text is tokenised without further special tokens; text without a
template gets those that the tokenizer adds.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jinja2 import TemplateError

from rljob_api.sections import Data
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.rows import Message, Row
from rljob_trainer.data.template import ASSISTANT_1, USER_1, default_system_turn, opens_assistant_turn
from rljob_trainer.samples import Prompt

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
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool, tools: Any = None
    ) -> Any:
        """Return the text. Raises jinja2's TemplateError."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the tokens. Raises TypeError or ValueError for what is no text."""


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

    def reference(self, row: Row) -> tuple[str, tuple[int, ...]]:
        """Return what follows the row's prompt when the assistant says the label: text and tokens, its end included.

        They are tokenised apart from the prompt, as engines make them.
        """
        if not row.label.strip():
            raise DataError(f"{row.place}: there is no response to learn (data.labelKey is empty there)")
        text = self._answer(row) if self._data.chat_template else row.label
        if text.endswith(row.label.rstrip()):
            if not self._tokenizer.eos_token:
                raise DataError("neither the chat template nor the tokenizer (eos_token) says how a response ends")
            text += self._tokenizer.eos_token
        return text, self._tokens(text, row, special=False)

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
            return tuple(self._tokenizer.encode(text, add_special_tokens=special))
        except (TypeError, ValueError) as error:
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
        if messages[0].role == "system" or self._tools:
            return text  # a system turn of the template's own is where it tells of tools
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

    def _study_template(self) -> None:
        if not self._tokenizer.chat_template:
            raise DataError("the model's tokenizer has no chat template; set data.chatTemplate to false")
        if not opens_assistant_turn(self._render):
            raise DataError(
                "the chat template ignores add_generation_prompt, so that the model would go on with the user's turn; "
                "mend the template, or set data.chatTemplate to false"
            )
        if self._data.system_prompt is None:
            self._unwanted_turn = default_system_turn(self._render, self._tokenizer.bos_token or "")
        if self._tools:
            self._study_tools()

    def _study_tools(self) -> None:
        """Raise DataError unless prompts tell the model of its tools, and the template has turns for their results."""
        system = (Message("system", self._data.system_prompt),) if self._data.system_prompt is not None else ()
        prompt = self._render((*system, USER_1), True, self._tools)
        unseen = [name for tool in self._tools if (name := tool["function"]["name"]) not in prompt]
        if unseen:
            raise DataError(
                f"the chat template does not tell the model of rollout.tools: {', '.join(unseen)} stands in no prompt; "
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
        conversation = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=open_assistant_turn, tools=tools
            )
        except TemplateError as error:
            roles = ", ".join(message.role for message in messages)
            raise DataError(f"the chat template refuses turns of {roles}: {error}") from error
        return text
