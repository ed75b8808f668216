"""Tries a model's chat template and tokenizer on a conversation or a text before this process uses them.

Foreign files can take all memory or never end, and may do so for a single conversation or text. So each is tried
in a process with limits first. What this process then computes is the same.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jinja2 import TemplateError

from rljob_trainer.processes.text_makers import MAKER, CostlyTemplateError

SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class Templated(Protocol):
    @property
    def chat_template(self) -> Any:
        """A text; anything else is left to the tokenizer's library."""


def try_template(
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


def try_encoding(tokenizer: object, text: str, special: bool) -> None:
    """Tokenise in a process with limits. Raises ForeignFileError where the tokenizer takes too much, or fails."""
    if (file := file_of(tokenizer)) is not None:
        MAKER.encode(file, text, special)


def try_decoding(tokenizer: object, tokens: Sequence[int]) -> None:
    """Make text of tokens in a process with limits. Raises ForeignFileError as `try_encoding` does."""
    if (file := file_of(tokenizer)) is not None:
        MAKER.decode(file, tokens)


def file_of(tokenizer: object) -> Path | None:
    """Return the file that decides what the tokenizer does; None where its own code does."""
    directory = getattr(tokenizer, "name_or_path", "")
    file = Path(directory or "/") / "tokenizer.json"
    return file if file.is_file() else None
