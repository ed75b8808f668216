"""The reference answer of a row: a text or a finite number. What else stands there is refused, with a way out."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.sections import Data
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.messages import kind_of

NAMES = ("ground_truth", "answer", "answers", "target", "targets", "label", "labels", "solution", "expected_answer",
         "final_answer", "gold", "reference", "text", "value")  # fmt: skip
"""of answers in the objects of common data sets, the most telling ones first"""
MOST_LEVELS = 4
"""of an object in which an answer is looked for"""
NAMED, LONGEST_KEY = 10, 100
"""keys in a message, and characters of each"""
NO_ANSWER = "no answer stands there: remove such rows, or give them one"
AS_TEXT = "not a string or a number: write it as text when the data is prepared"


def is_label(value: Any) -> bool:
    """Return whether `label` takes a value. bool is none, although Python takes it for an int."""
    kind = type(value)
    return kind is str or kind is int or (kind is float and math.isfinite(value))


def label(value: Any, data: Data, place: str, conversations: bool) -> str:
    """Return the label as text. Raises DataError, which says what stands there and what to do.

    With `conversations`, labels are responses to learn, and no reward gets them.
    """
    if isinstance(value, str):
        return value
    if is_label(value):
        return str(value)
    here = f"`{data.label_key}` (data.labelKey)"
    raise DataError(f"{place}: {here} {_fault(value, data, conversations)}")


def _fault(value: Any, data: Data, conversations: bool) -> str:
    match value:
        case float():
            return f"is {value}, not a string or a finite number; {NO_ANSWER}"
        case None:
            return f"is null, not a string or a number; {NO_ANSWER}"
        case bool():
            return 'is a boolean, not a string or a number: write it as the text that a response has, such as "yes"'
        case Mapping():
            return _fault_of_object(value, data, conversations)
        case list():
            return f"is {_fault_of_list(value, data, conversations)}"
        case _:
            return f"is {kind_of(value)}, {AS_TEXT}"


def _fault_of_object(value: Mapping[str, Any], data: Data, conversations: bool) -> str:
    if not value:
        return f"is an empty object, not a string or a number; {NO_ANSWER}"
    keys = [f"{key:.{LONGEST_KEY}}" for key in value]
    listed = ", ".join(keys[:NAMED]) + ", …" * (len(keys) > NAMED)
    fault = f"names an object with key{'s' * (len(keys) > 1)} {listed}, not a string or a number"
    if (found := _meant(value, data.label_key)) is None:
        return f"{fault}; name one of its texts, as in {data.label_key}.KEY"
    path, inner = found
    if isinstance(inner, list):
        return f"{fault}; its {path} is {_fault_of_list(inner, data, conversations)}"
    return f"{fault}; did you mean {path}?"


def _fault_of_list(value: list[Any], data: Data, conversations: bool) -> str:
    """Return what is wrong with a list, without what differs from row to row: rows with one fault share a message."""
    if not value:
        return f"an empty list, not a string or a number; {NO_ANSWER}"
    if conversations:
        return (
            "a list, and the response to learn is one text; a list of messages belongs behind those of "
            f"`{data.input_key}` (data.inputKey), as one conversation without a label"
        )
    given = "the whole row" if data.metadata_key is None else f"`{data.metadata_key}`"
    return (
        "a list, and rewards compare with one answer, a string or a number. Choose one when the data is prepared; or "
        "name another column in data.labelKey, and let your own function accept several (reward.kind Python): "
        f"it gets {given} as `metadata`"
    )


def _meant(value: Mapping[str, Any], path: str) -> tuple[str, Any] | None:
    """Return the path of the answer in an object, with what stands there; None where it is not clear."""
    found = [(f"{path}.{inner}", answer) for inner, answer in _leaves(value, MOST_LEVELS)]
    named = [(place, answer) for name in NAMES for place, answer in found if place.rpartition(".")[2] == name]
    return next(iter(named), found[0] if len(found) == 1 else None)


def _leaves(value: Mapping[str, Any], levels: int) -> Iterator[tuple[str, Any]]:
    """Yield what a path can lead to: labels, and lists of several, each with its path."""
    for key, inner in value.items():
        if not isinstance(key, str) or "." in key:
            continue
        if isinstance(inner, Mapping) and levels:
            yield from ((f"{key}.{path}", answer) for path, answer in _leaves(inner, levels - 1))
        elif is_label(inner) or (isinstance(inner, list) and inner):
            yield key, inner
