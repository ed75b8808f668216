"""What rows have that rljob does not pass to models: pictures, sounds, videos and tools."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.sections import Data
from rljob_trainer.data.rows import RawRow, Row

MEDIA = re.compile(
    r"(?:.*_)?(image|video|audio)(?:s|_urls?|_paths?|_files?)?|(multi_?modal_(?:data|inputs?))", re.IGNORECASE
)
"""a column of pictures, videos or sounds"""
PLACEHOLDER = re.compile(r"<(image|video|audio)(?:_?\d+)?>|<\|(?:image|video|audio|vision)_?[a-z_]*\|>")
"""what stands in a text for one of them"""
TOOLS = frozenset(("tools", "tools_kwargs", "tool_schemas", "tool_definitions", "available_tools", "functions"))
"""columns that describe tools in data of OpenAI, slime and verl"""
LONGEST = 2**20
"""of a text that is read as JSON [characters]; a row may have hundreds of megabytes"""


def media(raw: RawRow, found: Row) -> str | None:
    """Return what in a row stands for a picture, a video or a sound; None: nothing."""
    columns = [key for key, value in raw.items() if isinstance(key, str) and MEDIA.fullmatch(key) and _is_there(value)]
    if columns:
        return f"`{columns[0]}`"
    texts = (text for turn in found.turns for text in turn.said if "<" in text)
    marks = ((mark, text) for text in texts for mark in PLACEHOLDER.finditer(text))
    # HTML has tags of the same names, which are closed.
    return next((mark[0] for mark, text in marks if f"</{mark[1]}>" not in text), None)


def tools(raw: RawRow, data: Data) -> str | None:
    """Return the path of a column in a row that describes tools; None: there is none."""
    own = {data.input_key, data.label_key}
    return next((path for path, value in _columns(raw) if path not in own and _describes(value)), None)


def _columns(raw: RawRow) -> Iterator[tuple[str, Any]]:
    """Yield the columns of tools, at the top and in objects there, each with its path."""
    for key, value in raw.items():
        if key in TOOLS:
            yield key, value
        elif isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", each) for inner, each in value.items() if inner in TOOLS)


def _is_there(value: Any) -> bool:
    return value is not None and value is not False and value not in ("", [], {})


def _describes(value: Any) -> bool:
    """Return whether there are descriptions: objects, or their JSON; a list of words may be anything."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if len(value) <= LONGEST and value.lstrip()[:1] in ("[", "{") else None
        except (ValueError, RecursionError):
            return False
    if isinstance(value, Mapping):
        return any(each is not None for each in value.values())
    return isinstance(value, list) and any(isinstance(each, Mapping | str) and each for each in value)
