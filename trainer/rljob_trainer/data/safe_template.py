"""Tries a model's chat template on a conversation before this process renders it.

A template of a stranger can take all memory or never end, and may do so for a single conversation.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jinja2 import TemplateError

from rljob_trainer.processes.text_makers import MAKER, CostlyTemplateError

SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class Templated(Protocol):
    @property
    def chat_template(self) -> Any:
        """A text; anything else is left to the tokenizer's library."""


def try_apart(
    tokenizer: Templated,
    conversation: Sequence[Mapping[str, Any]],
    opens_turn: bool,
    tools: Sequence[Mapping[str, Any]] | None,
) -> None:
    """Render in a process with limits. Raises CostlyTemplateError where the template takes too much.

    What else it says is left to the tokenizer's own library.
    """
    template = tokenizer.chat_template
    if not isinstance(template, str):
        return
    texts = {name: text for name in SPECIAL if isinstance(text := getattr(tokenizer, name, None), str)}
    given = {
        "messages": list(conversation),
        "add_generation_prompt": opens_turn,
        "tools": list(tools) if tools else None,
    }
    try:
        MAKER.render(template, {**given, **texts})
    except CostlyTemplateError:
        raise
    except TemplateError:
        return
