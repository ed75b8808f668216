"""Messages to tokens, by the tokenizer's chat template: of a whole history, or of what follows an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.conversations.turns import Tokenizer, Turns, encoded
from rljob_trainer.data.trials import try_template
from rljob_trainer.gateway.errors import RequestError
from rljob_trainer.gateway.requests import Message


@dataclass(frozen=True, slots=True)
class Rendering:
    """One model's way to write conversations."""

    tokenizer: Tokenizer

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Return the tokens of a history, with the beginning of the answer. Raises RequestError."""
        conversation = [dict(message) for message in messages]
        try:
            try_template(self.tokenizer, conversation, True, tools or None)
            text: str = self.tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=True, tools=list(tools) or None
            )
            return tuple(encoded(self.tokenizer, text))
        except (TemplateError, TypeError, KeyError, GenerateError) as error:
            roles = ", ".join(message["role"] for message in messages[-10:])
            raise RequestError(f"the chat template refuses messages of {roles}: {error}", "messages") from error

    def following(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], last: int) -> tuple[int, ...]:
        """Return the tokens from the end of an answer, whose last token is `last`, to the beginning of the next.

        Raises RequestError.
        """
        try:
            return Turns(self.tokenizer, True, tuple(tools)).after_answer(messages, last)
        except GenerateError as error:
            raise RequestError(str(error), "messages") from error
