"""Sessions in files, for the gateway that comes after one that was killed: what was answered is read back.

    asked ─► answered, with all its turns ─► left: the client has it
      └────────────────────────────────────► ended

A file has a line of JSON for each of these events, written before anything leaves that depends on it. It goes with its
session. A killed process may leave its last line in parts: then no client has seen what it says.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from rljob_trainer.gateway.record import Opening, opening, turn_as_json, turn_from_json
from rljob_trainer.gateway.requests import Message
from rljob_trainer.gateway.tree import Turn
from rljob_trainer.private_files import appended, is_private

log = logging.getLogger(__name__)

MOST_BYTES = 1 << 30
"""of all files of a gateway; a session that does not fit is in no file any more"""
NAME = re.compile(r"[0-9a-f]{8,64}")
Json = dict[str, Any]
History = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """One of the answers to a request."""

    key: str
    """of the history that ends with it"""
    turns: tuple[Turn, ...]
    """one for each version of the weights"""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answers to a request."""

    name: str
    """of the request"""
    demand: str
    """what was asked: a request that is repeated has the same"""
    answers: tuple[Answered, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """What a session has met."""

    over: str | None = None
    away: str | None = None
    refused: int = 0
    first_refusal: str = ""
    cut_off: int = 0


@dataclass
class Kept:
    """A session as its file has it."""

    key: str
    opening: Opening
    answers: list[Answered] = field(default_factory=list)
    stored: dict[str, History] = field(default_factory=dict)
    condition: Condition = field(default_factory=Condition)
    under_way: dict[str, None] = field(default_factory=dict)
    """requests without an end, by name"""
    waiting: dict[str, Reply] = field(default_factory=dict)
    """by name; their clients may not have them"""


class SessionFile:
    """The file of one session."""

    def __init__(self, files: "SessionFiles", path: Path, size: int = 0) -> None:
        self._files, self._path, self._size = files, path, size
        self._is_kept = True

    def opened(self, key: str, begun: Opening) -> None:
        """Note its beginning."""
        self._add({"opened": {"key": key, "opening": asdict(begun)}})

    def asked(self, name: str) -> None:
        """Note that a request has come."""
        self._add({"asked": name})

    def answered(self, reply: Reply, is_awaited: bool) -> None:
        """Note all turns of a reply at once; `is_awaited`: its client will take it."""
        answers = [{"key": each.key, "turns": [turn_as_json(turn) for turn in each.turns]} for each in reply.answers]
        content = {"name": reply.name, "demand": reply.demand, "is_awaited": is_awaited, "answers": answers}
        self._add({"answered": content})

    def left(self, name: str) -> None:
        """Note that the client has the reply to a request."""
        self._add({"left": name})

    def stored(self, name: str, previous: str | None, more: Sequence[Message]) -> None:
        """Note a history that a request may continue by its name: the previous one, and more messages."""
        self._add({"stored": {"name": name, "previous": previous, "more": list(more)}})

    def ended(self, names: Sequence[str], condition: Condition) -> None:
        """Note that requests are not under way any more, and what the session has met by now."""
        self._add({"ended": list(names), "condition": asdict(condition)})

    def remove(self) -> None:
        """Delete it."""
        self._is_kept = False
        self._files.used -= self._size
        self._size = 0
        with suppress(OSError):
            self._path.unlink()

    def _add(self, event: Mapping[str, Any]) -> None:
        if not self._is_kept:
            return
        try:
            line = orjson.dumps(event) + b"\n"
            if self._files.used + len(line) > self._files.most_bytes:
                raise OSError(f"all files together would have more than {self._files.most_bytes} bytes")
            with appended(self._path) as file:
                file.write(line)
        except (OSError, TypeError) as error:  # TypeError: a text that is not Unicode
            log.warning("action=keep_no_longer session=%s reason=%s", self._path.name, error)
            self.remove()
        else:
            self._size += len(line)
            self._files.used += len(line)


class SessionFiles:
    """The files of one gateway and of its successors, in their directory."""

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.used = 0
        """by all files [bytes]"""
        self._directory = directory

    def new(self, name: str) -> SessionFile:
        """Return the file of a new session."""
        return SessionFile(self, self._directory / name)

    def read(self) -> Iterator[tuple[str, Kept, SessionFile]]:
        """Yield the sessions that are there, by name; a file that is not ours, or says nothing, goes."""
        for path in sorted(self._directory.iterdir()):
            try:
                kept, size = self._read(path)
            except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
                log.warning("action=keep_no_longer session=%s reason=%s: %s", path.name, type(error).__name__, error)
                with suppress(OSError):
                    path.unlink()
            else:
                self.used += size
                yield path.name, kept, SessionFile(self, path, size)

    def _read(self, path: Path) -> tuple[Kept, int]:
        if not NAME.fullmatch(path.name) or not is_private(path):
            raise ValueError("not a file of a session")
        if (size := path.stat().st_size) > self.most_bytes - self.used:
            raise ValueError(f"{size} bytes are too many")
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        kept = read_back(content[:whole])
        if whole < len(content):
            with path.open("r+b") as file:
                file.truncate(whole)
        return kept, whole


def read_back(lines: bytes) -> Kept:
    """Return what whole lines say. Raises ValueError, KeyError, TypeError and IndexError for others."""
    first, *events = (orjson.loads(line) for line in lines.splitlines())
    kept = Kept(first["opened"]["key"], opening(first["opened"]["opening"]))
    for event in events:
        match event:
            case {"asked": str(name)}:
                kept.under_way[name] = None
            case {"answered": content}:
                reply = _reply(content)
                kept.answers += reply.answers
                if content["is_awaited"]:
                    kept.under_way.pop(reply.name, None)
                    kept.waiting[reply.name] = reply
            case {"left": str(name)}:
                kept.waiting.pop(name, None)
            case {"stored": {"name": str(name), "previous": previous, "more": more}}:
                kept.stored[name] = (*(kept.stored[previous] if previous is not None else ()), *more)
            case {"ended": names, "condition": condition}:
                kept.condition = Condition(**condition)
                for name in names:
                    kept.under_way.pop(name, None)
            case _:
                raise ValueError(f"an event that is not known: {event!r:.80}")
    numbers = [turn.number for answered in kept.answers for turn in answered.turns]
    if numbers != list(range(len(numbers))):
        raise ValueError("turns are missing")
    return kept


def _reply(content: Json) -> Reply:
    answers = (
        Answered(each["key"], tuple(turn_from_json(turn) for turn in each["turns"])) for each in content["answers"]
    )
    return Reply(content["name"], content["demand"], tuple(answers))
