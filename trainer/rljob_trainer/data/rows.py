"""One row of a source, checked: a question, a label, and the row itself. All kinds of sources end here."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from rljob_api.sections import Data
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.labels import is_label, label
from rljob_trainer.data.messages import ASSISTANT, Message, kind_of, message

RawRow = Mapping[str, Any]
NAMED, LONGEST_KEY = 50, 100
"""keys in a message, and characters of each"""


@dataclass(frozen=True, slots=True)
class Row:
    """A question with its reference answer."""

    place: str
    """where it came from, for messages: `prompts.jsonl:12`"""
    messages: tuple[Message, ...]
    """the conversation so far; the last turn is the user's"""
    answers: tuple[Message, ...]
    """how a whole conversation continues, up to its end, which is the assistant's; empty: the label is the answer"""
    templated: bool
    """whether the question was a plain string, so that `data.promptTemplate` applies to it"""
    label: str
    """the reference answer; of a whole conversation, what is said in `answers`"""
    metadata: RawRow

    @property
    def turns(self) -> tuple[Message, ...]:
        """All that is said; rows that say the same are not measured on and trained on."""
        return (*self.messages, *self.answers)

    @property
    def question(self) -> str:
        """The last user turn: what makes two rows the same question, together with the turns before it."""
        return self.messages[-1].content


def row(raw: RawRow, place: str, data: Data, conversations: bool = False) -> Row:
    """Return the checked row; raise DataError naming its place, the key wanted and the keys found.

    With `conversations`, messages that end with the assistant's are a whole conversation and need no label.
    """
    question = _find(raw, data.input_key, "inputKey", place)
    metadata = raw if data.metadata_key is None else _find(raw, data.metadata_key, "metadataKey", place)
    if not isinstance(metadata, Mapping):
        raise DataError(f"{place}: `{data.metadata_key}` (data.metadataKey) is {kind_of(metadata)}, not an object")
    turns = _turns(question, data.input_key, place)
    if conversations and turns[-1].role == ASSISTANT:
        _only(raw, data, place)
        messages, answers = _split(turns, data.input_key, place)
        answer = "\n".join(text for turn in answers for text in turn.said)
    else:
        messages, answers = _asked(turns, data.input_key, place), ()
        answer = label(_find(raw, data.label_key, "labelKey", place), data, place, conversations)
    found = Row(place, messages, answers, isinstance(question, str), answer, metadata)
    if not all(map(_is_whole, (answer, *(text for turn in found.turns for text in turn.said)))):
        raise DataError(
            f"{place}: has half a character (a surrogate such as \\ud83d without its other half), which is not text: "
            "was it cut between two halves? Write the row again from its source, or remove it"
        )
    return found


def is_plain(raw: RawRow, data: Data) -> bool:
    """Return whether a row is a text with a label, of which `row` has nothing to say; a quick look at most rows."""
    question = raw.get(data.input_key)
    answer = raw.get(data.label_key)
    is_text = type(question) is str and bool(question.strip()) and _is_whole(question)
    return is_text and is_label(answer) and _is_whole(str(answer)) and data.metadata_key is None


def _is_whole(text: str) -> bool:
    """Return whether a text has a form in UTF-8. JSON can have one that has not, and no tokenizer takes it."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def require_response(found: Row) -> None:
    """Raise DataError if the row has no response to learn."""
    if not found.answers and not found.label.strip():
        raise DataError(f"{found.place}: there is no response to learn (data.labelKey is empty there)")


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
    nested = (f"{key}.{inner}" for key, value in raw.items() if isinstance(value, Mapping) for inner in value)
    first = list(islice(chain(raw, nested), NAMED + 1))
    more = f" and more, of {len(raw)} at the top" if len(first) > NAMED else ""
    return f"{', '.join(f'`{key:.{LONGEST_KEY}}`' for key in first[:NAMED])}{more}" or "no keys at all"


def _turns(question: Any, key: str, place: str) -> tuple[Message, ...]:
    if isinstance(question, str):
        messages: tuple[Message, ...] = (Message("user", question),)
    elif isinstance(question, list):
        messages = tuple(message(turn, f"{place}: message {number} of `{key}`") for number, turn in enumerate(question))
    else:
        raise DataError(f"{place}: `{key}` is {kind_of(question)}, not a string or a list of chat messages")
    if not messages or not messages[-1].said:
        raise DataError(f"{place}: `{key}` is empty")
    return messages


def _asked(messages: tuple[Message, ...], key: str, place: str) -> tuple[Message, ...]:
    if messages[-1].role != "user":
        raise DataError(
            f"{place}: the last message of `{key}` is the {messages[-1].role}'s; it must be the user's "
            "(data.assistantPrefill begins the assistant's turn)"
        )
    return messages


def _split(turns: tuple[Message, ...], key: str, place: str) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Return a whole conversation up to the assistant's first turn, and from there on."""
    first = next(number for number, turn in enumerate(turns) if turn.role == ASSISTANT)
    if not first or turns[first - 1].role != "user":
        raise DataError(f"{place}: in `{key}` the assistant speaks before the user has: there is no question")
    spoken = [(number, turn) for number, turn in enumerate(turns) if turn.role == ASSISTANT]
    if empty := [number for number, turn in spoken if not turn.said]:
        raise DataError(f"{place}: message {empty[0]} of `{key}` is empty: there is no response to learn")
    if unlearned := [number for number, turn in spoken if turn.more.get("weight") == 0]:
        raise DataError(
            f"{place}: message {unlearned[0]} of `{key}` has the weight 0, and all answers of a conversation are "
            "learned; give those that shall be learned separate rows, with the messages so far and a label"
        )
    return turns[:first], turns[first:]


def _only(raw: RawRow, data: Data, place: str) -> None:
    """Raise DataError where a whole conversation has a label, too."""
    try:
        _find(raw, data.label_key, "labelKey", place)
    except DataError:
        return
    raise DataError(
        f"{place}: `{data.input_key}` ends with an answer of the assistant's, and `{data.label_key}` (data.labelKey) "
        "is there as well: remove that message, or the label"
    )
