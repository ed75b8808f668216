"""One row of a source, checked: a question, a label, and the row itself. All kinds of sources end here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rljob_api.sections import Data
from rljob_trainer.data.errors import DataError

RawRow = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Row:
    """A question with its reference answer."""

    place: str
    """where it came from, for messages: `prompts.jsonl:12`"""
    messages: tuple[Message, ...]
    """the conversation so far; the last turn is the user's"""
    templated: bool
    """whether the question was a plain string, so that `data.promptTemplate` applies to it"""
    label: str
    metadata: RawRow

    @property
    def question(self) -> str:
        """The last user turn: what makes two rows the same question, together with the turns before it."""
        return self.messages[-1].content


def row(raw: RawRow, place: str, data: Data) -> Row:
    """Return the checked row; raise DataError naming its place, the key wanted and the keys found."""
    question = _find(raw, data.input_key, "inputKey", place)
    metadata = raw if data.metadata_key is None else _find(raw, data.metadata_key, "metadataKey", place)
    if not isinstance(metadata, Mapping):
        raise DataError(f"{place}: `{data.metadata_key}` (data.metadataKey) is {_kind(metadata)}, not an object")
    return Row(
        place=place,
        messages=_messages(question, data.input_key, place),
        templated=isinstance(question, str),
        label=_label(_find(raw, data.label_key, "labelKey", place), data.label_key, place),
        metadata=metadata,
    )


def _find(raw: RawRow, key: str, field: str, place: str) -> Any:
    """Return `raw[key]`, or what the dotted path leads to: `metadata.expression`."""
    if key in raw:
        return raw[key]
    value: Any = raw
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise DataError(f"{place}: no key `{key}` (data.{field}); the row has {_paths(raw)}")
        value = value[part]
    return value


def _paths(raw: RawRow) -> str:
    nested = [f"{key}.{inner}" for key, value in raw.items() if isinstance(value, Mapping) for inner in value]
    return ", ".join(f"`{key}`" for key in [*raw, *nested]) or "no keys at all"


def _messages(question: Any, key: str, place: str) -> tuple[Message, ...]:
    if isinstance(question, str):
        messages: tuple[Message, ...] = (Message("user", question),)
    elif isinstance(question, list):
        messages = tuple(_message(turn, number, key, place) for number, turn in enumerate(question))
    else:
        raise DataError(f"{place}: `{key}` is {_kind(question)}, not a string or a list of chat messages")
    if not messages or not messages[-1].content.strip():
        raise DataError(f"{place}: `{key}` is empty")
    if messages[-1].role != "user":
        raise DataError(
            f"{place}: the last message of `{key}` is the {messages[-1].role}'s; it must be the user's "
            "(data.assistantPrefill begins the assistant's turn)"
        )
    return messages


def _message(turn: Any, number: int, key: str, place: str) -> Message:
    match turn:
        case {"role": str(role), "content": str(content)}:
            return Message(role, content)
    raise DataError(f"{place}: message {number} of `{key}` wants a `role` and a `content`, both text; is {turn!r:.200}")


def _label(value: Any, key: str, place: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise DataError(f"{place}: `{key}` (data.labelKey) is {_kind(value)}, not a string or a number")


def _kind(value: Any) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"
