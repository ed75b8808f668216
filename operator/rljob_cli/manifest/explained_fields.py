"""What the fields of a manifest take and mean, for `rljob explain`: read off the models, as docs/manifest.md is."""

import re
from functools import cache

from rljob_api.generated.manifest_page import anchor, sentence
from rljob_api.reading import field_lookup, field_types
from rljob_api.reading.field_lookup import Entry
from rljob_cli.manifest.explanations import Explanation, Kind, nearest_of, plain

VALUE = re.compile(r"`(\w+)`")


def fields(word: str) -> tuple[Explanation, ...]:
    """Return the fields that a word names, each section with its own fields.

    A path (`training.nodes`, with or without `spec`) names one field, a single name all fields of that name, a name of
    another system (`--lr`, `ppo_mini_batch_size`) what stands for it here, and a value (`grpo`) its fields.
    """
    by_path = [entry for entry in _entries() if plain(word) == _path(entry)]
    named = by_path + [entry for entry in _entries() if plain(word) == plain(entry.path[-1])]
    if not named:
        meant = (field_lookup.exactly(field_lookup.spelled(word)) or "").split(" or ")
        named = [entry for entry in _entries() if field_lookup.dotted(entry.path) in meant]
        named = named or [entry for entry in _entries() if plain(word) in _values(entry)]
    within = [entry for section in named if section.section for entry in _entries() if entry.path[:-1] == section.path]
    return tuple(map(_explanation, dict.fromkeys((*named, *within))))


def nearest_fields(word: str) -> tuple[str, ...]:
    """Return up to three paths of fields that are most like a path."""
    return nearest_of(word.removeprefix("spec."), {_path(entry): _shown(entry) for entry in _entries()})


def paths() -> tuple[str, ...]:
    """Return the paths of all fields below `spec`."""
    return tuple(map(_shown, _entries()))


@cache
def _entries() -> tuple[Entry, ...]:
    return tuple(entry for path, entry in field_lookup.entries().items() if path[0] == "spec" and len(path) > 1)


def _shown(entry: Entry) -> str:
    return field_lookup.dotted(entry.path[1:])


def _path(entry: Entry) -> str:
    return plain(_shown(entry))


def _values(entry: Entry) -> set[str]:
    """Return the words that a field takes: of a closed set, or as its text has them."""
    return {plain(word) for word in (*field_types.kind(entry.field).split(" | "), *VALUE.findall(entry.text))}


def _explanation(entry: Entry) -> Explanation:
    text = sentence(entry.text)
    default = field_types.default(entry.field)
    value = "; required" if default is None else f"; default {default}" if default else ""
    return Explanation(
        name=field_lookup.dotted(entry.path),
        kind=Kind.FIELD,
        means=text if entry.section else f"{field_types.kind(entry.field)}{value}. {text[:1].upper()}{text[1:]}",
        do="",
        link=f"docs/manifest.md#{anchor(entry.path if entry.section else entry.path[:-1])}",
    )
