"""Reads what `plan` and `validate` need of a model: its `config.json`, and the tokens that end a response.

Only JSON files of a local checkpoint are opened; a model in a Python package is described here. A
checkpoint that is not on this machine is not an error here: the manifest may be meant for another one.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api import hub
from rljob_api.errors import ManifestError, Problem
from rljob_api.sizing.known_models import KNOWN, ON_THE_HUB
from rljob_api.sizing.model_shape import CHECKPOINT
from rljob_trainer.data.packages import cache_directory, on_this_machine
from rljob_trainer.rundir.retries import judge_volume
from rljob_trainer.text import some

Json = Mapping[str, Any]
LONGEST_FILE = 2**26
"""of a JSON file or a template [bytes]: the longest list tokens"""
MOST_NAMES = 6
"""of a directory without a model that are named"""
NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class StopToken:
    """A token that ends a response."""

    id: int
    source: str
    """file or field that says so"""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What the files of a checkpoint say."""

    config: Json
    stop_tokens: tuple[StopToken, ...]


def model_files(checkpoint: str) -> ModelFiles | None:
    """Return what a checkpoint's files say; None when it is not on this machine.

    The sizes of a common model of the hub are known before it is downloaded. Raises ManifestError when a file cannot be
    understood.
    """
    if checkpoint in KNOWN:
        return ModelFiles(KNOWN[checkpoint], eos_ids(KNOWN[checkpoint], checkpoint))
    directory = on_this_machine(checkpoint, cache_directory(os.environ))
    if directory is None:
        wanted = hub.model(checkpoint)
        if wanted is None or wanted.repo not in ON_THE_HUB:
            return None
        return ModelFiles(ON_THE_HUB[wanted.repo], eos_ids(ON_THE_HUB[wanted.repo], checkpoint))
    config = contents(directory, "config.json")
    if config is None:
        raise ManifestError((Problem(CHECKPOINT, checkpoint, no_config(directory)),))
    generation = contents(directory, "generation_config.json") or {}
    tokens = (
        *eos_ids(generation, "generation_config.json"),
        *eos_ids(config, "config.json"),
        *eos_of_tokenizer(contents(directory, "tokenizer_config.json") or {}),
    )
    first: dict[int, StopToken] = {}
    for token in tokens:
        first.setdefault(token.id, token)
    return ModelFiles(config, tuple(first.values()))


def no_config(directory: Path) -> str:
    """Return what is wrong with a directory without config.json, and what it holds."""
    names = sorted(path.name + "/" * path.is_dir() for path in directory.iterdir())
    holds = f"it holds {some(names, MOST_NAMES)}" if names else "it is empty"
    inside = sorted(each.parent.name for each in directory.glob("*/config.json"))
    where = f", and {inside[0]}/ in it has one" if len(inside) == 1 else ""
    return f"has no config.json: {holds}{where}; a directory in the format of Hugging Face is expected"


def contents(directory: Path, name: str) -> Json | None:
    """Return a JSON object from a file; None when there is no such file.

    Raises ManifestError for the file, and OSError for a volume that is away.
    """
    path = directory / name
    if not path.is_file():
        return None
    try:
        found = json.loads(small_text(path))
    except (OSError, ValueError, RecursionError) as error:
        judge_volume(error)
        raise ManifestError((Problem(CHECKPOINT, str(path), f"cannot be read: {error}"),)) from error
    if not isinstance(found, dict):
        raise ManifestError((Problem(CHECKPOINT, str(path), "is not a JSON object"),))
    return found


def small_text(path: Path) -> str:
    """Return the text of a file that describes a model. Raises OSError, and ValueError for another file."""
    with path.open("rb") as file:
        content = file.read(LONGEST_FILE + 1)
    if len(content) > LONGEST_FILE:
        raise ValueError(f"it has more than {LONGEST_FILE} bytes")
    return content.decode("utf-8")


def eos_ids(config: Json, source: str) -> tuple[StopToken, ...]:
    given = config.get("eos_token_id")
    ids = given if isinstance(given, list) else [given]
    return tuple(StopToken(token, source) for token in ids if isinstance(token, int))


def eos_of_tokenizer(config: Json) -> tuple[StopToken, ...]:
    """Return the tokenizer's end token, looked up among the tokens that the file lists."""
    given = config.get("eos_token")
    text = given.get("content") if isinstance(given, dict) else given
    listed = config.get("added_tokens_decoder")
    entries = listed.items() if isinstance(listed, dict) and isinstance(text, str) else ()
    return tuple(
        StopToken(int(token), "tokenizer_config.json")
        for token, entry in entries
        if isinstance(entry, dict) and entry.get("content") == text and NUMBER.fullmatch(token)
    )
