"""What driver and gateway tell each other of a session, as values and as JSON."""

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import nan
from typing import Any

import numpy as np

from rljob_trainer.gateway.tree import Turn

ADMIN_VARIABLE = "RLJOB_GATEWAY_KEY"
"""has the key of the driver, which opens and closes sessions"""
BACKLOG = 1024
"""connections that wait for a gateway that is busy, or starts again"""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a gateway serves all sessions with."""

    model: str
    """directory of the Hugging Face checkpoint"""
    context: int
    """tokens of a prompt and its answer"""
    new_tokens: int
    """most that the model writes in a session"""
    turns: int
    """most of a session"""
    lifetime_s: float
    """of a session that is not closed [s]"""
    deadline_s: float
    """of one request to an engine [s]"""
    patience_s: float
    """longest time without an answer of any engine [s]"""
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    whole: bool = False
    """whether an answer whose client goes away is made to its end: only then an engine says which experts it used"""
    carries: bool = False
    """whether an answer that a publication cuts off continues with the new weights"""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a session begins with."""

    router: str
    """URL"""
    temperature: float
    top_p: float
    top_k: int
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """A session that is closed."""

    turns: tuple[Turn, ...] = ()
    over: str | None = None
    """the limit that ended it: `context`, `tokens` or `turns`"""
    away: str | None = None
    """why no engine answered, where none did for long"""
    refused: int = 0
    """requests of the agent that were refused"""
    first_refusal: str = field(default="")
    cut_off: int = 0
    """requests that the end of a gateway has cut off; their clients had to ask again"""


def opening(content: Mapping[str, Any]) -> Opening:
    """Return the value of a JSON object."""
    lists = {name: tuple(content[name]) for name in ("stop", "stop_token_ids")}
    return Opening(**{**content, **lists})


def as_json(record: Record) -> dict[str, Any]:
    """Return a record as a JSON object."""
    return {**asdict(replace(record, turns=())), "turns": [turn_as_json(turn) for turn in record.turns]}


def from_json(content: Mapping[str, Any]) -> Record:
    """Return the value of a JSON object."""
    return Record(**{**content, "turns": tuple(turn_from_json(each) for each in content["turns"])})


def turn_as_json(turn: Turn) -> dict[str, Any]:
    """Return a turn as a JSON object; its tuples stay what they are."""
    return {each.name: getattr(turn, each.name) for each in fields(turn)} | {"experts": _written(turn)}


def turn_from_json(content: Mapping[str, Any]) -> Turn:
    """Return the value of a JSON object."""
    lists: dict[str, tuple[Any, ...]] = {
        name: tuple(content[name]) for name in ("given_T", "tokens_T", "logprobs_T", "calls")
    }
    lists["logprobs_T"] = tuple(nan if each is None else each for each in lists["logprobs_T"])  # JSON has no NaN
    lists["carried"] = tuple((version, tokens) for version, tokens in content["carried"])
    given = content["experts"]
    experts = None if given is None else np.frombuffer(base64.b64decode(given), np.int16)
    return Turn(**{**content, **lists, "experts": experts})


def _written(turn: Turn) -> str | None:
    return None if turn.experts is None else base64.b64encode(turn.experts.tobytes()).decode("ascii")
