"""A checkpoint's tokenizer and chat template, from its files, with the libraries that transformers itself uses.

Both are foreign: they are used in a separate process, with limits (`processes/text_makers.py`).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rljob_api.errors import Problem
from rljob_api.sizing.model_shape import CHECKPOINT, TEACHER
from rljob_trainer.data.vocabulary import difference
from rljob_trainer.preflight.model_files import small_text
from rljob_trainer.processes.text_makers import MAKER, ForeignFileError
from rljob_trainer.rundir.retries import judge_volume

SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class TokenizerFileError(Exception):
    """The files of a tokenizer cannot be used; the argument is a Problem."""


@dataclass(frozen=True)
class FileTokenizer:
    """What the trainer's renderer needs of a tokenizer, and what preflight asks of it besides.

    All that its files decide is computed apart: its methods raise ForeignFileError.
    """

    tokens: Path
    """`tokenizer.json`"""
    settings: Mapping[str, Any]
    """`tokenizer_config.json`"""
    chat_template: str | None

    @property
    def bos_token(self) -> str | None:
        return text_of(self.settings.get("bos_token"))

    @property
    def eos_token(self) -> str | None:
        return text_of(self.settings.get("eos_token"))

    @property
    def adds_bos(self) -> bool:
        """Whether text without a template gets a begin-of-text token."""
        return self.bos_token is not None and self.encode("a")[:1] == [self.vocabulary.get(self.bos_token)]

    @cached_property
    def special(self) -> dict[str, int]:
        """Tokens that no ordinary text is split into, by their texts."""
        return MAKER.added(self.tokens)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """All tokens by their texts, added ones too."""
        return MAKER.vocabulary(self.tokens)

    @property
    def highest_id(self) -> int:
        return max(self.vocabulary.values(), default=-1)

    def apply_chat_template(
        self,
        conversation: list[dict[str, str]],
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        tools: Any = None,
    ) -> str:
        """Return the rendered text. Raises jinja2's TemplateError."""
        names = {name: text for name in SPECIAL if (text := text_of(self.settings.get(name))) is not None}
        given = {"messages": conversation, "add_generation_prompt": add_generation_prompt, "tools": tools}
        return MAKER.render(self.chat_template or "", {**given, **names})

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text."""
        return MAKER.encode(self.tokens, text, add_special_tokens)


def read_tokenizer(directory: Path) -> FileTokenizer | None:
    """Return the tokenizer; None where it has another form than `tokenizer.json`. Raises TokenizerFileError."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        return None
    settings = read_settings(directory / "tokenizer_config.json")
    found = FileTokenizer(path, settings, template(directory, settings))
    try:
        _ = found.special
    except (ForeignFileError, OSError) as error:
        judge_volume(error)
        raise TokenizerFileError(
            Problem(CHECKPOINT, path.name, f"cannot be read: {error}", "fetch it again")
        ) from error
    return found


def read_settings(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(small_text(path)) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        judge_volume(error)
        raise TokenizerFileError(Problem(CHECKPOINT, path.name, f"cannot be read: {error}")) from error
    return found if isinstance(found, dict) else {}


def template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the chat template: a separate file, or one of the settings; of several, the default.

    Raises TokenizerFileError.
    """
    own = directory / "chat_template.jinja"
    if own.is_file():
        try:
            return small_text(own)
        except (OSError, ValueError) as error:
            judge_volume(error)
            raise TokenizerFileError(Problem(CHECKPOINT, own.name, f"cannot be read: {error}")) from error
    given = settings.get("chat_template")
    if isinstance(given, list):
        several = (each for each in given if isinstance(each, dict) and each.get("name") == "default")
        given = next((each.get("template") for each in several), None)
    return given if isinstance(given, str) else None


def text_of(token: Any) -> str | None:
    """Return the text of a special token, which is written as a text or as an object."""
    given = token.get("content") if isinstance(token, dict) else token
    return given if isinstance(given, str) else None


def judge_vocabulary(tokenizer: FileTokenizer, config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem where the tokenizer has tokens without a row in the embedding."""
    size, highest = config.get("vocab_size"), tokenizer.highest_id
    if isinstance(size, int) and highest >= size:
        rule = f"has the token {highest}, and config.json makes room for {size} (vocab_size): they are of two models"
        yield Problem(CHECKPOINT, "tokenizer.json", rule)


def judge_teacher(student: FileTokenizer, directory: Path) -> Iterator[Problem]:
    """Yield a problem where the teacher in `directory` has other tokens than the student."""
    try:
        teacher = read_tokenizer(directory)
    except TokenizerFileError as error:
        yield replace(error.args[0], field=TEACHER)
        return
    if teacher is not None and (found := difference(student.vocabulary, teacher.vocabulary)):
        yield Problem(TEACHER, str(directory), f"has not the student's tokenizer: {found}")
