"""The tokens that a chat template puts between two turns of the model, found by rendering the template.

Rendering [user, assistant] and then the environment's turns gives

    ... user ... assistant MARKER <end of the model's turn> <turns of the environment> <start of the model's next turn>

Everything after the marker belongs to the environment. Everything before it is ignored: the conversation so far is kept
as tokens and never rendered again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jinja2 import TemplateError

from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.data.trials import try_decoding, try_encoding, try_template
from rljob_trainer.processes.text_makers import ForeignFileError

QUESTION = {"role": "user", "content": "question-marker"}
MARKER = "answer-marker"


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is needed here."""

    @property
    def chat_template(self) -> Any:
        """None or empty: it has none."""

    def apply_chat_template(
        self, conversation: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool, tools: Any
    ) -> Any:
        """Return the text. Raises jinja2's TemplateError."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the tokens."""

    def decode(self, token_ids: list[int]) -> str:
        """Return the text, markers included."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of one model's chat template."""

    tokenizer: Tokenizer
    templated: bool
    """whether prompts are rendered with it; without it there are no turns"""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of what the model may call: some templates write turns otherwise where there are any"""

    def after_answer(self, messages: Sequence[Mapping[str, Any]], last: int | None) -> tuple[int, ...]:
        """Return the tokens from the model's last one, `last`, to the beginning of its next turn.

        `last` None stands for a model that has said nothing yet. Raises GenerateError.
        """
        if not self.templated:
            raise GenerateError("there are no turns to reply with: data.chatTemplate is false; use give()")
        if last is None:
            raise GenerateError("there is nothing to reply to: the model was not asked yet")
        tokens = encoded(self.tokenizer, self._behind_answer(messages))
        # A model that ended its turn by itself has written that token; one that was cut off, or stopped, has not.
        return tuple(tokens[1:] if tokens[:1] == [last] else tokens)

    def _behind_answer(self, messages: Sequence[Mapping[str, Any]]) -> str:
        conversation = [QUESTION, {"role": "assistant", "content": MARKER}, *map(dict, messages)]
        try:
            try_template(self.tokenizer, conversation, True, self.tools or None)
            text: str = self.tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=True, tools=list(self.tools) or None
            )
        except (TemplateError, TypeError, KeyError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise GenerateError(f"the chat template refuses turns of {roles}: {error}") from error
        _, found, behind = text.partition(MARKER)
        if not found:
            raise GenerateError(
                "the chat template does not quote the assistant's turn, so the conversation cannot continue"
            )
        return behind


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of what the environment says. Raises GenerateError where the tokenizer takes too much."""
    try:
        try_encoding(tokenizer, text, special=False)
    except ForeignFileError as error:
        raise GenerateError(f"the model's tokenizer cannot encode {len(text)} characters: {error}") from error
    return tokenizer.encode(text, add_special_tokens=False)


def decoded(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Return the text of tokens. Raises GenerateError where the tokenizer takes too much."""
    try:
        try_decoding(tokenizer, tokens)
    except ForeignFileError as error:
        raise GenerateError(f"the model's tokenizer cannot decode {len(tokens)} tokens: {error}") from error
    return tokenizer.decode(list(tokens))
