"""The form of a table from another system's names to fields of an RLJob, and how one name is carried over.

A table has one entry per name: the field and the conversion, or the reason why there is no field. Settings that make
sense only together are `Joint`: a function of the system's module reads them.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from rljob_api.facts import System, facts, fields
from rljob_api.rules import arguments
from rljob_api.sections import Spec
from rljob_importing.words import Given

LONGEST = 100
"""of a number [characters]"""
NUMBER = re.compile(r"[-+]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Conversion:
    """How a value is read from another system's words, and written in them."""

    read: Callable[[Given], object]
    """raises ValueError with a sentence that begins with the value"""
    write: Callable[[object], tuple[str, ...] | None]
    """the words after the flag; None: the flag is left out"""
    is_text: bool = False
    """whether a value with unknown parts still makes sense"""


@dataclass(frozen=True, slots=True)
class Field:
    """A name that is one field."""

    path: str
    """below `spec`, `rollout.promptsPerStep`"""
    conversion: Conversion
    check: str = ""
    """what its user should know, because it works differently; empty: it works the same"""


@dataclass(frozen=True, slots=True)
class Joint:
    """A name that is read together with others."""

    fields: str
    """the fields, for the documentation"""


@dataclass(frozen=True, slots=True)
class Needless:
    """A name that needs no field: rljob always does so, or does not need it."""

    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A name that rljob has no counterpart for."""

    why: str
    harmless: tuple[str, ...] = ()
    """values with which rljob does the same"""


Entry = Field | Joint | Needless | Lost
MEMORY = Lost("rljob does not save memory in this way; `rljob plan` shows what a run needs")
PACKED = Needless("samples are always packed, up to spec.training.maxTokensPerGpu")
LOGGING = Needless("reports, metrics and samples are always kept in the run directory")
EPOCHS = "the number of steps depends on the rows: set spec.training.steps to epochs x rows / promptsPerStep"
"""why a number of epochs is not carried over"""
Table = Mapping[str, Entry]


def whole(text: str) -> int:
    """Return a whole number. Raises ValueError."""
    if not _is_number(text) or not float(text).is_integer():
        raise ValueError(f"{shortened(text)!r} is not a whole number")
    return int(text) if re.fullmatch(r"[-+]?[\d_]+", text) else int(float(text))


def number(text: str) -> float:
    """Return a number. Raises ValueError."""
    if not _is_number(text):
        raise ValueError(f"{shortened(text)!r} is not a number")
    return float(text)


def number_or_text(text: str) -> float | str:
    """Return a number, or the text, which the rules refuse where a number is wanted."""
    try:
        return number(text)
    except ValueError:
        return text


def _is_number(text: str) -> bool:
    return len(text) <= LONGEST and NUMBER.fullmatch(text) is not None


def shortened(text: str) -> str:
    """Return the beginning of a long value, for a message."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def single(given: Given) -> str:
    """Return the only value of an argument. Raises ValueError."""
    if len(given.words) != 1:
        raise ValueError(f"{len(given.words)} values where one is expected")
    return given.words[0].text


def function(text: str) -> str:
    """Return `package.module.function` as `package.module:function`. Raises ValueError."""
    module, _, name = text.rpartition(".")
    if ":" in text:
        return text
    if not module:
        raise ValueError(f"{shortened(text)!r} is not of the form module.function")
    return f"{module}:{name}"


def plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def switched(given: Given) -> bool:
    """Return whether a flag, which may have a value, is on. Raises ValueError."""
    text = given.words[0].text.lower() if given.words else "true"
    if text not in ("true", "false", "1", "0"):
        raise ValueError(f"{shortened(text)!r} is neither true nor false")
    return text in ("true", "1")


def chosen(options: Mapping[str, str]) -> Conversion:
    """Return the conversion of a choice; several foreign names may mean one of rljob's, and the first is written."""
    ours = {option: name for name, option in reversed(list(options.items()))}

    def read(given: Given) -> str:
        text = single(given)
        if text.lower() not in options:
            raise ValueError(f"{shortened(text)!r} has no counterpart; these have: {', '.join(options)}")
        return options[text.lower()]

    return Conversion(read, lambda value: (ours[str(value)],) if str(value) in ours else None)


def means(value: str) -> Conversion:
    """Return the conversion of a flag without a value, which stands for one choice."""

    def read(given: Given) -> str:
        if not switched(given):
            raise ValueError("is off")
        return value

    return Conversion(read, lambda held: () if held == value else None)


WHOLE = Conversion(lambda given: whole(single(given)), lambda value: (plain(value),))
REAL = Conversion(lambda given: number(single(given)), lambda value: (plain(value),))
SECONDS = Conversion(lambda given: max(1, round(number(single(given)))), lambda value: (plain(value),))
TEXT = Conversion(single, lambda value: (str(value),), is_text=True)
DIRECTORY = Conversion(lambda given: single(given).rstrip("/") or "/", lambda value: (str(value),), is_text=True)
ON = Conversion(switched, lambda value: () if value else None)
PRESENT = Conversion(lambda given: True, lambda value: None)
"""a flag whose value, a path of theirs, has no counterpart"""
TEXTS = Conversion(lambda given: [word.text for word in given.words], lambda value: _each(value), is_text=True)
WHOLES = Conversion(lambda given: [whole(word.text) for word in given.words], lambda value: _each(value))
FUNCTION = Conversion(lambda given: function(single(given)), lambda value: (str(value).replace(":", "."),))
MEBIBYTES = Conversion(
    lambda given: max(1, whole(single(given)) // 2**20),
    lambda value: (plain(value * 2**20 if isinstance(value, int) else value),),
)


def _each(value: object) -> tuple[str, ...] | None:
    return tuple(map(plain, value)) if isinstance(value, list | tuple) and value else None


def of_facts(system: System, key: Callable[[str], str] = str) -> dict[str, Entry]:
    """Return a part of a table: the names that are facts of a field whose type says how their values are read.

    `key` returns how the table calls a name; empty: it has no such name.
    """
    found: dict[str, Entry] = {}
    for path, field in fields(Spec):
        if conversion := conversion_to(path, field.annotation):
            found |= same(Field(path, conversion), filter(None, map(key, facts(field).names(system))))
    return found


def flag(name: str) -> str:
    """Return a name of Megatron that is a flag."""
    return "" if "_" in name else name


def transformer_field(name: str) -> str:
    """Return a name of Megatron that is a field of its TransformerConfig, as such."""
    field = name.replace("-", "_")
    return field if field in arguments.known("megatron") else ""


def conversion_to(path: str, kind: Any) -> Conversion | None:
    """Return the conversion to a type; None: not its words alone say what they mean."""
    options = [without_bounds(each) for each in get_args(kind) or (kind,) if each is not NoneType]
    if get_origin(kind) is tuple:
        return {str: TEXTS, int: WHOLES}.get(options[0])
    for end, conversion in BY_NAME.items():
        if path.lower().endswith(end):
            return conversion
    return {bool: ON, int: WHOLE, float: REAL, str: TEXT}.get(options[0])


BY_NAME = {"seconds": SECONDS, "checkpoint": DIRECTORY, "directory": DIRECTORY}
"""conversions of fields whose names end so"""


def without_bounds(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def same(entry: Entry, names: Iterable[str]) -> dict[str, Entry]:
    """Return a part of a table: the same entry for several names."""
    return dict.fromkeys(names, entry)
