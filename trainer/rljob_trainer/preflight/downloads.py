"""The thin shell around the hub and stores: downloads what the checks before a start read, all but the weights."""

import os
from dataclasses import replace
from pathlib import Path

from rljob_api import hub, objects
from rljob_api.errors import Problem
from rljob_api.sections import Source, Spec
from rljob_api.sizing.model_shape import CHECKPOINT, TEACHER
from rljob_trainer.data import stored_objects
from rljob_trainer.data.hub import SMALL, Hub, HubAwayError, HubError, cached, fetched, hub_of
from rljob_trainer.data.packages import cache_directory
from rljob_trainer.data.stored_objects import Objects, objects_of
from rljob_trainer.preflight.findings import Findings
from rljob_trainer.remote.errors import RemoteAwayError, RemoteError

SHORT_S = 60.0
"""without a byte, before a store is away: a user may be waiting at a terminal [s]"""


def download(spec: Spec) -> Findings:
    """Download configurations, tokenizers and questions that the manifest names on the hub or in stores.

    Raises HubAwayError and RemoteAwayError: an unreachable server is not a mistake of the manifest.
    """
    problems = []
    for field, text, wanted in references(spec):
        try:
            if wanted is None:
                stored_objects.fetched(_objects(), text, is_model=is_model(field), patterns=SMALL)
            else:
                fetched(_hub(), wanted, SMALL)
        except (HubAwayError, RemoteAwayError):
            raise
        except (HubError, RemoteError) as error:
            problems.append(Problem(field, text, f"cannot be used: {str(error).removeprefix(f'{wanted or text}: ')}"))
    return Findings(tuple(problems))


def is_model(field: str) -> bool:
    """Return whether a field names a checkpoint, not questions."""
    return field in (CHECKPOINT, TEACHER)


def references(spec: Spec) -> list[tuple[str, str, hub.Reference | None]]:
    """Return field, value and meaning of each reference to the hub; None: to a store."""
    models = [(CHECKPOINT, spec.model.checkpoint)]
    if spec.algorithm.teacher is not None and spec.debug.learner:
        models.append((TEACHER, spec.algorithm.teacher.checkpoint))
    found = [(field, text, hub.model(text)) for field, text in models]
    for field, source in spec.data.sources.items():
        if (given := file_of(source)) is not None:
            kind, path = given
            found.append((f"{field}.{kind}", path, hub.file(path)))
    return [each for each in found if each[2] is not None or objects.is_reference(each[1])]


def file_of(source: Source) -> tuple[str, str] | None:
    """Return the kind and the path of a source that is a file."""
    if source.reasoning_gym is not None:
        return None
    return ("jsonl", source.jsonl) if source.jsonl is not None else ("parquet", source.parquet or "")


def file_on_this_machine(text: str) -> Path | None:
    """Return the path of a file of questions that needs no download; None: there is none."""
    wanted = hub.file(text)
    if objects.is_reference(text):
        path = stored_objects.cached(_objects(), text, is_model=False)
    else:
        path = Path(text) if wanted is None else cached(_hub(), wanted)
    return path if path is not None and path.is_file() else None


def _objects() -> Objects:
    return replace(objects_of(os.environ, cache_directory(os.environ)), longest_s=SHORT_S)


def _hub() -> Hub:
    return hub_of(os.environ, cache_directory(os.environ))
