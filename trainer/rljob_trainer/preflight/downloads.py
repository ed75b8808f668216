"""The thin shell around the hub: downloads what the checks before a start read, which is all but the weights."""

import os
from pathlib import Path

from rljob_api import hub
from rljob_api.errors import Problem
from rljob_api.sections import Source, Spec
from rljob_api.sizing.model_shape import CHECKPOINT, TEACHER
from rljob_trainer.data.hub import SMALL, Hub, HubAwayError, HubError, cached, fetched, hub_of
from rljob_trainer.data.packages import cache_directory
from rljob_trainer.preflight.findings import Findings


def download(spec: Spec) -> Findings:
    """Download configurations, tokenizers and questions that the manifest names on the hub.

    Raises HubAwayError: an unreachable hub is not a mistake of the manifest.
    """
    problems = []
    for field, text, wanted in references(spec):
        try:
            fetched(_hub(), wanted, SMALL)
        except HubAwayError:
            raise
        except HubError as error:
            problems.append(Problem(field, text, f"cannot be used: {str(error).removeprefix(f'{wanted}: ')}"))
    return Findings(tuple(problems))


def references(spec: Spec) -> list[tuple[str, str, hub.Reference]]:
    """Return field, value and meaning of each reference to the hub."""
    models = [(CHECKPOINT, spec.model.checkpoint)]
    if spec.algorithm.teacher is not None and spec.debug.learner:
        models.append((TEACHER, spec.algorithm.teacher.checkpoint))
    found = [(field, text, hub.model(text)) for field, text in models]
    for field, source in spec.data.sources.items():
        if (given := file_of(source)) is not None:
            kind, path = given
            found.append((f"{field}.{kind}", path, hub.file(path)))
    return [(field, text, wanted) for field, text, wanted in found if wanted is not None]


def file_of(source: Source) -> tuple[str, str] | None:
    """Return the kind and the path of a source that is a file."""
    if source.reasoning_gym is not None:
        return None
    return ("jsonl", source.jsonl) if source.jsonl is not None else ("parquet", source.parquet or "")


def file_on_this_machine(text: str) -> Path | None:
    """Return the path of a file of questions that needs no download; None: there is none."""
    wanted = hub.file(text)
    path = Path(text) if wanted is None else cached(_hub(), wanted)
    return path if path is not None and path.is_file() else None


def _hub() -> Hub:
    return hub_of(os.environ, cache_directory(os.environ))
