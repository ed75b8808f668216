"""An RLJob while it is made from another system's settings: its fields with their origins, and what has no field."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from rljob_api.credentials import holds_secret
from rljob_api.errors import ABSENT, Problem
from rljob_importing.mapping import Entry, Field, Joint, Lost, Needless, Table, number, whole
from rljob_importing.words import Given

Number = TypeVar("Number", int, float)
LONGEST = 300
"""of an argument in a note [characters]"""
MOST_REASONS = 10
"""of manifests for which one argument is reported as unknown"""
MOST_SUGGESTIONS = 100
"""of names that are near an unknown one: each costs milliseconds"""
ALGORITHM = "algorithm."
"""fields whose default must not stand for another value: one that cannot be read is kept as it is, and refused"""
LONGEST_NAME = 100
"""of a name that may be near another one [characters]"""
SECRET = re.compile(r"wandb-key|api[-_]?key|password|secret|(^|[-_.])token$")


class NoteKind(StrEnum):
    CHECK = "Check"
    """carried over, but works differently"""
    LOST = "Lost"
    """no counterpart"""
    UNKNOWN = "Unknown"
    """a value that only a run of the script could know, or that cannot be read"""
    UNLISTED = "Unlisted"
    """a name that the other system is not known to have"""
    NEEDLESS = "Needless"
    """no counterpart, and none is needed"""


@dataclass(frozen=True, slots=True)
class Note:
    """What became of an argument that is not simply a field."""

    kind: NoteKind
    argument: str
    """as its author wrote it, with its place"""
    why: str

    def __str__(self) -> str:
        return f"{self.argument}: {self.why}" if self.argument else self.why


@dataclass(slots=True)
class Draft:
    """A spec while it is made."""

    spec: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """by the path of the field, `rollout.promptsPerStep`"""
    notes: list[Note] = field(default_factory=list)
    undecided: list[Problem] = field(default_factory=list)
    """what changes the algorithm and cannot be carried over: its author has to decide before the manifest is valid"""
    arguments: int = 0
    """how many were read"""
    listed: int = 0
    """how many of them the table knows"""

    def put(self, path: str, value: object, origin: str) -> None:
        """Set a field; a value that an earlier argument has set is replaced."""
        *sections, name = path.split(".", 2) if path.startswith("extraArgs.") else path.split(".")
        here = self.spec
        for section in sections:
            here = here.setdefault(section, {})
        here[name] = value
        self.origins[path] = origin

    def fill(self, defaults: Mapping[str, object], origin: str) -> None:
        """Set the fields that nothing has set yet."""
        for path, value in defaults.items():
            if path not in self.origins:
                self.put(path, value, origin)

    def remove(self, path: str) -> None:
        """Remove a field with all below it, and sections that this leaves empty."""
        _removed(self.spec, path.split(".", 2) if path.startswith("extraArgs.") else path.split("."))
        for other in [each for each in self.origins if each == path or each.startswith(f"{path}.")]:
            del self.origins[other]

    def leave_open(self, path: str, given: Given, why: str) -> None:
        """Note an argument without counterpart that changes the algorithm. The manifest is not valid with it."""
        self.note(NoteKind.LOST, given, why)
        self.undecided.append(Problem(f"spec.{path}", ABSENT, f"leaves out {origin(given)}: {why}"))

    def note(self, kind: NoteKind, given: Given | None, why: str) -> None:
        self.notes.append(Note(kind, origin(given) if given else "", why))


def _removed(here: dict[str, Any], path: Sequence[str]) -> None:
    if len(path) > 1 and isinstance(here.get(path[0]), dict):
        _removed(here[path[0]], path[1:])
        if not here[path[0]]:
            del here[path[0]]
    else:
        here.pop(path[0], None)


def origin(given: Given) -> str:
    """Return `--lr 1e-6, line 12`; a secret is not shown, and of a long argument the beginning is."""
    shown = given.shown if len(given.shown) <= LONGEST else f"{given.shown[:LONGEST]}…"
    if SECRET.search(given.name) or holds_secret(given.text):
        shown = f"{shown.split()[0].split('=')[0]} (hidden)"
    return f"{shown}, {given.place}"


class Arguments(Mapping[str, Given]):
    """All arguments by name; of an argument that is given twice the last counts, as in argparse and Hydra."""

    def __init__(self, given: Sequence[Given]) -> None:
        self._given = {each.name: each for each in given}

    def __getitem__(self, name: str) -> Given:
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def text(self, name: str) -> str | None:
        """Return the value; None: it is not given."""
        return self[name].text if name in self else None

    def whole(self, name: str) -> int | None:
        """Return a whole number; None: it is not given, or no known number."""
        return self._read(name, whole)

    def number(self, name: str) -> float | None:
        """Return a number; None: it is not given, or no known number."""
        return self._read(name, number)

    def _read(self, name: str, read: Callable[[str], Number]) -> Number | None:
        if name not in self or self[name].unknown:
            return None
        try:
            return read(self[name].text)
        except ValueError:
            return None


def carry_over(draft: Draft, arguments: Arguments, table: Table, otherwise: Callable[[Draft, Given], bool]) -> None:
    """Carry over each argument by its entry.

    `otherwise` is asked about names that are not in the table, and returns whether it knows them.
    """
    unlisted = 0
    for given in arguments.values():
        draft.arguments += 1
        entry = table.get(given.name)
        if entry is not None:
            draft.listed += 1
            carry(draft, given, entry)
        elif otherwise(draft, given):
            draft.listed += 1
        else:
            unlisted += 1
            is_compared = unlisted <= MOST_SUGGESTIONS and len(given.name) <= LONGEST_NAME
            close = difflib.get_close_matches(given.name, table, n=1, cutoff=0.7) if is_compared else []
            near = f"; did you mean {given.shown[: given.shown.find(given.name)]}{close[0]}?" if close else ""
            draft.note(NoteKind.UNLISTED, given, f"unknown name{near}")


def by_family(families: Sequence[tuple[re.Pattern[str], Entry]]) -> Callable[[Draft, Given], bool]:
    """Return what carries over an argument by the first pattern that matches its name, if any does."""

    def carried(draft: Draft, given: Given) -> bool:
        entry = next((entry for names, entry in families if names.fullmatch(given.name)), None)
        if entry is not None:
            carry(draft, given, entry)
        return entry is not None

    return carried


def carry(draft: Draft, given: Given, entry: Entry) -> None:
    """Carry over one argument."""
    match entry:
        case Field():
            into_field(draft, given, entry)
        case Joint():
            note_unknown(draft, given)
        case Needless():
            draft.note(NoteKind.NEEDLESS, given, entry.why)
        case Lost():
            kind = NoteKind.NEEDLESS if given.text.lower() in entry.harmless else NoteKind.LOST
            draft.note(kind, given, entry.why)


def into_field(draft: Draft, given: Given, entry: Field) -> None:
    note_unknown(draft, given)
    if given.unknown and not entry.conversion.is_text:
        return
    try:
        draft.put(entry.path, entry.conversion.read(given), origin(given))
    except ValueError as error:
        draft.note(NoteKind.UNKNOWN, given, f"{error}; set spec.{entry.path}")
        if entry.path.startswith(ALGORITHM):
            draft.put(entry.path, given.text, origin(given))
        return
    if entry.check:
        draft.note(NoteKind.CHECK, given, entry.check)


def note_unknown(draft: Draft, given: Given) -> None:
    reasons = tuple(dict.fromkeys(given.unknown))
    for reason in reasons[:MOST_REASONS]:
        draft.note(NoteKind.UNKNOWN, given, reason if len(reason) <= LONGEST else f"{reason[:LONGEST]}…")
    if len(reasons) > MOST_REASONS:
        draft.note(NoteKind.UNKNOWN, given, f"{len(reasons) - MOST_REASONS} more parts are not known")
